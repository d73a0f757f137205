// The flags of the job itself: what is trained, on what, how, and with which optimizer. Who takes
// part, and by which topology, are flags of main.cc and join/sync_flags.h.

#ifndef GRADSYNC_WORKER_TRAINING_FLAGS_H_
#define GRADSYNC_WORKER_TRAINING_FLAGS_H_

#include "absl/status/statusor.h"
#include "train/trainer_options.h"

namespace gradsync {

// What the flags say; what is not a flag of this library is left at its default. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<TrainerOptions> TrainerOptionsFromFlags();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAINING_FLAGS_H_
