#include "train/job_inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/open_dataset.h"

namespace gradsync {

absl::StatusOr<JobInputs> OpenJobInputs(const TrainerOptions& options, int rank, int world_size) {
  if (options.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size: expected at least 1, found ", options.batch_size));
  }
  if (options.steps < 0 || options.epochs < 0 || (options.steps == 0 && options.epochs == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--steps, --epochs: expected one of them at least 1, found ", options.steps,
                     " and ", options.epochs));
  }
  GS_RETURN_IF_ERROR(options.optimizer.Validate());
  GS_RETURN_IF_ERROR(options.straggler.CheckWorkers(world_size));
  if (options.gpu != nullptr && !options.straggler.nobody()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--straggler: expected none on a GPU, whose work the host only queues, found ",
                     options.straggler.text()));
  }
  JobInputs inputs;
  GS_ASSIGN_OR_RETURN(inputs.train, OpenDataset(options.data, Split::kTrain));
  if (options.evaluate_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--evaluate_every: expected at least 0, found ", options.evaluate_every));
  }
  if (options.evaluate || options.evaluate_every > 0) {
    GS_ASSIGN_OR_RETURN(inputs.test, OpenDataset(options.data, Split::kTest));
  }
  SamplerOptions sampler;
  sampler.dataset_size = inputs.train->size();
  sampler.rank = rank;
  sampler.world_size = world_size;
  sampler.seed = options.seed;
  GS_ASSIGN_OR_RETURN(DistributedSampler created, DistributedSampler::Create(sampler));
  inputs.sampler = std::make_unique<DistributedSampler>(std::move(created));
  const int64_t share = inputs.sampler->samples_per_rank();
  if (options.batch_size > share) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size: expected at most a rank's share of ", options.data, ", ", share,
                     " of ", inputs.train->size(), " samples, found ", options.batch_size));
  }
  const int64_t batches_per_epoch = (share + options.batch_size - 1) / options.batch_size;
  inputs.steps_per_epoch = batches_per_epoch;
  inputs.steps = options.steps != 0 ? options.steps : options.epochs * batches_per_epoch;
  GS_ASSIGN_OR_RETURN(inputs.recipe, FitRecipe(options.recipe, inputs.steps, batches_per_epoch));
  if (options.warmup_steps < 0 || options.warmup_steps >= inputs.steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("--warmup_steps: expected at least 0 and less than the job's ", inputs.steps,
                     " steps, found ", options.warmup_steps));
  }
  return inputs;
}

}  // namespace gradsync
