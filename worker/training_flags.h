// The flags of the job itself: what is trained, on what and how, with the recipe of recipe_flags.h.
// Who takes part, and by which topology, are flags of main.cc and gradsync/join/sync_flags.h.

#ifndef GRADSYNC_WORKER_TRAINING_FLAGS_H_
#define GRADSYNC_WORKER_TRAINING_FLAGS_H_

#include "absl/status/statusor.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// What the flags say, recipe included; what is not a flag is left at its default. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<TrainerOptions> TrainerOptionsFromFlags();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAINING_FLAGS_H_
