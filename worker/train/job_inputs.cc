#include "worker/train/job_inputs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/train/job_data.h"

namespace gradsync {
namespace {

bool Evaluates(const TrainerOptions& options) {
  return options.evaluate || options.evaluate_every > 0 || options.evaluate_only ||
         options.checkpoint.best;
}

}  // namespace

absl::StatusOr<JobInputs> OpenJobInputs(const TrainerOptions& options, int rank, int world_size) {
  if (options.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size: expected at least 1, found ", options.batch_size));
  }
  if (options.accumulate < 1) {
    return FlagError("accumulate", "at least 1", absl::StrCat(options.accumulate));
  }
  if (options.data_parallel < 1) {
    return FlagError("data_parallel", "at least 1", absl::StrCat(options.data_parallel));
  }
  if (options.batch_size % options.data_parallel != 0) {
    return FlagError("batch_size",
                     absl::StrCat("a multiple of --data_parallel=", options.data_parallel),
                     absl::StrCat(options.batch_size));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    return FlagError("label_smoothing", "a number from 0 to 1",
                     absl::StrCat(options.label_smoothing));
  }
  if (!(options.ema_decay >= 0 && options.ema_decay < 1)) {
    return FlagError("ema_decay", "a number of at least 0 and less than 1",
                     absl::StrCat(options.ema_decay));
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
  if (options.evaluate_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--evaluate_every: expected at least 0, found ", options.evaluate_every));
  }
  JobData train;
  if (!options.evaluate_only) {
    GS_ASSIGN_OR_RETURN(train,
                        OpenJobData(options.model, options.data, Split::kTrain, options.dataset));
    inputs.identities["train"] = train.identity();
  }
  if (Evaluates(options)) {
    GS_ASSIGN_OR_RETURN(const JobData test,
                        OpenJobData(options.model, options.data, Split::kTest, options.dataset));
    inputs.test = test.images;
    inputs.test_tokens = test.tokens;
    inputs.identities["test"] = test.identity();
    // The shape of samples and the number of classes are then read from it.
    if (options.evaluate_only) train = test;
  }
  inputs.train = train.images;
  inputs.train_tokens = train.tokens;
  SamplerOptions sampler;
  sampler.dataset_size = train.size();
  sampler.rank = rank;
  sampler.world_size = world_size;
  sampler.seed = options.seed;
  sampler.order = options.sampler;
  GS_ASSIGN_OR_RETURN(DistributedSampler created, DistributedSampler::Create(sampler));
  inputs.sampler = std::make_unique<DistributedSampler>(std::move(created));
  if (options.evaluate_only) return inputs;
  const int64_t share = inputs.sampler->samples_per_rank();
  if (options.batch_size > share) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size: expected at most a rank's share of ", options.data, ", ", share,
                     " of ", train.size(), " samples, found ", options.batch_size));
  }
  inputs.accumulation = {share, options.batch_size / options.data_parallel,
                         options.accumulate * options.data_parallel};
  const int64_t steps_per_epoch = inputs.accumulation.StepsPerEpoch();
  inputs.steps_per_epoch = steps_per_epoch;
  inputs.steps = options.steps != 0 ? options.steps : options.epochs * steps_per_epoch;
  const int64_t workers = options.synchronised ? world_size : 1;
  GS_ASSIGN_OR_RETURN(const RecipeOptions scaled,
                      ScaleRate(options.recipe, options.batch_size * options.accumulate * workers));
  GS_ASSIGN_OR_RETURN(inputs.recipe, FitRecipe(scaled, inputs.steps, steps_per_epoch));
  if (options.warmup_steps < 0 || options.warmup_steps >= inputs.steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("--warmup_steps: expected at least 0 and less than the job's ", inputs.steps,
                     " steps, found ", options.warmup_steps));
  }
  return inputs;
}

std::vector<std::string> NoticesOn(const TrainerOptions& options, const JobInputs& inputs) {
  std::vector<std::string> notices;
  if (options.evaluate_only) return notices;
  const std::string of_job = absl::StrCat("a job of ", inputs.steps, " steps");
  if (options.evaluate_every > inputs.steps && !options.evaluate) {
    std::string line =
        absl::StrCat("--evaluate_every: ", options.evaluate_every, " is never due in ", of_job);
    if (options.ema_decay > 0 && !options.checkpoint.wanted()) {
      absl::StrAppend(&line, ", nor is the average of --ema_decay=", options.ema_decay, " used");
    }
    notices.push_back(absl::StrCat(line, "; --evaluate measures after the last step"));
  }
  // The first step with the whole rate, the job's first being 0.
  const RecipeOptions& recipe = inputs.recipe;
  const int64_t risen = recipe.warmup_start.has_value()
                            ? recipe.warmup_steps
                            : std::max<int64_t>(1, recipe.warmup_steps) - 1;
  if (recipe.warmup_steps > 0 && risen >= inputs.steps) {
    notices.push_back(absl::StrCat("--lr_warmup: a rise over ", recipe.warmup_steps,
                                   " steps is not over in ", of_job, ": its learning rate ends at ",
                                   LearningRate(recipe, inputs.steps - 1), " and never gets to ",
                                   recipe.base));
  }
  return notices;
}

}  // namespace gradsync
