#include "worker/train/job_inputs.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/data/dataset.h"
#include "worker/data/open_dataset.h"
#include "worker/data/tokens.h"
#include "worker/models/create_model.h"
#include "worker/models/layers.h"
#include "worker/models/model_options.h"
#include "worker/train/recipe.h"

namespace gradsync {
namespace {

bool Evaluates(const TrainerOptions& options) {
  return options.evaluate || options.evaluate_every > 0 || options.evaluate_only ||
         options.checkpoint.best;
}

bool HasBatchOfOne(const JobInputs& inputs) {
  const Accumulation& batches = inputs.accumulation;
  if (batches.batch_size == 1) return true;
  return batches.share % batches.batch_size == 1 && inputs.steps >= inputs.steps_per_epoch;
}

// BatchNorm then has the values of all ranks.
bool NormalisesTogether(const TrainerOptions& options, const JobInputs& inputs) {
  return options.sync_batchnorm && options.synchronised && inputs.sampler->options().world_size > 1;
}

// Whether forward in training does so many images.
bool Takes(int64_t images, const ImageShape& shape, Model& model) {
  const c10::NoGradGuard no_grad;
  // The running statistics.
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const at::Tensor& buffer : model.buffers()) before.emplace_back(buffer, buffer.clone());
  bool takes = true;
  try {
    model.forward(at::zeros({images, shape.channels, shape.height, shape.width}));
  } catch (const std::exception&) {
    takes = false;
  }
  for (const auto& [buffer, values] : before) buffer.copy_(values);
  return takes;
}

at::Tensor ExampleOf(const JobData& data) {
  if (data.tokens != nullptr) return at::zeros({1, data.tokens->context()}, at::kLong);
  const ImageShape shape = data.images->shape();
  return at::zeros({1, shape.channels, shape.height, shape.width}, at::kFloat);
}

}  // namespace

absl::StatusOr<JobData> OpenJobData(const ModelOptions& model, const std::string& data, Split split,
                                    const DatasetOptions& images) {
  JobData opened;
  const ModelEntry* const entry = FindModel(model.name);
  // An unknown model is CreateModel()'s to name.
  if (entry == nullptr) return CreateModel(model).status();
  const bool tokens = entry->input == InputKind::kTokens;
  if (!tokens && IsText(data)) {
    return FlagError("data",
                     absl::StrCat("images with --model=", model.name, " (text is for --model=gpt)"),
                     data);
  }
  if (tokens && !IsText(data) && data != "synthetic") {
    return FlagError("data", absl::StrCat("text:FILE or synthetic with --model=", model.name),
                     data);
  }
  if (tokens) {
    GS_ASSIGN_OR_RETURN(opened.tokens, OpenTokens(data, split, model.gpt_context));
  } else {
    GS_ASSIGN_OR_RETURN(opened.images, OpenDataset(data, split, images));
  }
  return opened;
}

absl::StatusOr<ModelOptions> FitModel(ModelOptions model, const JobData& data) {
  const int64_t needed =
      data.tokens != nullptr ? data.tokens->vocabulary() : int64_t{data.images->classes()};
  if (model.classes == 0) model.classes = needed;
  if (model.classes < needed) {
    return FlagError("classes",
                     absl::StrCat("at least ", needed, ", as many as the data has, or 0"),
                     absl::StrCat(model.classes));
  }
  if (data.images != nullptr) model.image_size = data.images->shape().height;
  return model;
}

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
  GS_ASSIGN_OR_RETURN(RankSampler created, RankSampler::Create(sampler));
  inputs.sampler = std::make_unique<RankSampler>(std::move(created));
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

absl::Status CheckBatchOfOne(const TrainerOptions& options, const JobInputs& inputs, Model& model) {
  if (inputs.train == nullptr || !HasBatchOfOne(inputs) || NormalisesTogether(options, inputs) ||
      SetMomentExchange(model, nullptr) == 0) {
    return absl::OkStatus();
  }
  const ImageShape shape = inputs.train->shape();
  // What does not do two either has another reason, which training will say.
  if (Takes(1, shape, model) || !Takes(2, shape, model)) return absl::OkStatus();
  const std::string batches =
      options.data_parallel > 1
          ? absl::StrCat("parts for --data_parallel=", options.data_parallel, " replicas")
          : "batches";
  return FlagError(
      "batch_size",
      absl::StrCat("one without ", batches, " of a single image, which BatchNorm cannot normalise",
                   " (a rank's share of ", options.data, " is ", inputs.accumulation.share,
                   " images)"),
      absl::StrCat(options.batch_size));
}

absl::StatusOr<std::string> DescribeJob(const TrainerOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobData data,
                      OpenJobData(options.model, options.data, Split::kTrain, options.dataset));
  GS_ASSIGN_OR_RETURN(const ModelOptions fitting, FitModel(options.model, data));
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, CreateModel(fitting));
  try {
    return DescribeModel(options.model.name, *model, ExampleOf(data));
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("describing the model: LibTorch: ", FirstLine(e.what())));
  }
}

}  // namespace gradsync
