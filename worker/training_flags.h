// The flags that say how and on what a model is trained.

#ifndef GRADSYNC_WORKER_TRAINING_FLAGS_H_
#define GRADSYNC_WORKER_TRAINING_FLAGS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/job_spec.h"
#include "core/program/flags.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// The flags of the job itself: what is trained, on what and how. Who takes part, and by which
// topology, are flags of main.cc and worker/sync_flags.h.

// What the flags say, recipe included; what is not a flag is left at its default. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<TrainerOptions> TrainerOptionsFromFlags();

// The flags of the recipe: the optimizer, the learning rate, what is done to loss, gradients and
// weights.

// Gives flags whose default depends on others their value, where nobody set them: --weight_decay,
// which differs between optimizers. The flag has it from then on, for ranks and checkpoints to
// compare, and so has its record in `flags`. First of all. Errors: as RecipeFromFlags().
absl::Status ResolveRecipeDefaults(std::vector<FlagRecord>* flags);

// Fills in what these flags say; the rest of `options` stays. Errors: INVALID_ARGUMENT naming the
// flag, what was expected and what came.
absl::Status RecipeFromFlags(TrainerOptions* options);

// Whether the recipe can be had under `job`. Errors: as RecipeFromFlags().
absl::Status CheckRecipe(const JobSpec& job, int world_size, const TrainerOptions& options);

// The flags of how data are read: what image folders give, in which order samples come, how far
// ahead batches are prepared.

// Puts what the flags say into `options`, whose `data` is there already. Errors: INVALID_ARGUMENT
// naming the flag, what was expected and what came, such as a flag of image folders with other
// data.
absl::Status DataOptionsFromFlags(TrainerOptions* options);

// Whether --check_data asks to read the data once instead of training.
bool WantsDataCheck();

// What --check_data does instead of training: reads and decodes every sample of the training split,
// and of the test split if there is one, on `--loader_threads` threads, or all cores where that is
// 0. Prints what the data are, and a line for each sample that cannot be read, or is read with a
// warning. Returns the program's exit code: 0 if all samples can be read, 2 otherwise.
int CheckData(const TrainerOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAINING_FLAGS_H_
