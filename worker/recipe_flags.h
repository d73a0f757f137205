// The flags of the recipe: the optimizer, the learning rate, what is done to loss, gradients and
// weights. What is trained, on what and where, are flags of training_flags.h.

#ifndef GRADSYNC_WORKER_RECIPE_FLAGS_H_
#define GRADSYNC_WORKER_RECIPE_FLAGS_H_

#include <vector>

#include "absl/status/status.h"
#include "core/base/flags.h"
#include "core/plan/job_spec.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// Gives flags whose default depends on others their value, where nobody set them: --weight_decay,
// which differs between optimizers. The flag has it from then on, for ranks and checkpoints to
// compare, and so has its record in `flags`. First of all. Errors: as RecipeFromFlags().
absl::Status ResolveRecipeDefaults(std::vector<FlagRecord>* flags);

// Fills in what these flags say; the rest of `options` stays. Errors: INVALID_ARGUMENT naming the
// flag, what was expected and what came.
absl::Status RecipeFromFlags(TrainerOptions* options);

// Whether the recipe can be had under `job`. Errors: as RecipeFromFlags().
absl::Status CheckRecipe(const JobSpec& job, int world_size, const TrainerOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_RECIPE_FLAGS_H_
