#include "worker/training_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/plan/kinds.h"
#include "core/plan/optimizer_spec.h"
#include "core/program/byte_sizes.h"
#include "core/program/program_main.h"
#include "worker/data/image_folder.h"
#include "worker/data/open_dataset.h"
#include "worker/data/sampler.h"
#include "worker/job_flags.h"
#include "worker/models/model_options.h"
#include "worker/train/compute_options.h"
#include "worker/train/job_inputs.h"
#include "worker/train/recipe.h"

ABSL_FLAG(std::string, model, "resnet18",
          absl::StrCat("model to train: ", gradsync::ListOfModels()));
ABSL_FLAG(std::string, stem, "imagenet",
          "first convolution of a ResNet: imagenet (7x7) or cifar (3x3)");
ABSL_FLAG(
    std::string, data, "synthetic",
    "data to train on: synthetic, synthetic:PIXELS (images so high and wide; else 32), "
    "cifar10:DIR (folder of the binary version), imagefolder:DIR (JPEG and PNG files in class "
    "folders), or for --model=gpt synthetic or text:FILE (its bytes are the tokens, its last "
    "tenth is the test split)");
ABSL_FLAG(int64_t, batch_size, 32, "samples per worker and step");
ABSL_FLAG(int64_t, steps, 0, "optimizer steps; 0: as many as --epochs has");
ABSL_FLAG(int64_t, epochs, 1, "passes over the data, when --steps is 0");
ABSL_FLAG(int64_t, warmup_steps, 0, "steps at the start that are trained but not measured");
ABSL_FLAG(bool, evaluate, false, "measure accuracy on the test split after the last step");
ABSL_FLAG(int64_t, evaluate_every, 0,
          "measure accuracy on the test split, by all workers together, every so many steps; with "
          "ssp and asp rank 0 keeps copies of its model, and evaluates them after the last step; "
          "0: never");
ABSL_FLAG(uint64_t, seed, 0, "seed of initial weights, order of samples and augmentation");
ABSL_FLAG(std::string, straggler, "",
          "who computes slower, the same on all workers: RANK:FACTOR, or "
          "random:SEED:PROBABILITY:FACTOR for each rank and step");
ABSL_FLAG(std::string, precision, "fp32",
          "type in which convolutions and matrix products compute: fp32, bf16, or fp16 (GPU and "
          "--update=worker only; scales the loss); parameters, gradients and the loss are fp32 in "
          "any case");
ABSL_FLAG(bool, channels_last, false,
          "keep images and weights of convolutions in channels-last memory format (NHWC)");
ABSL_FLAG(bool, cuda_graph, gradsync::TrainerOptions().cuda_graph,
          "on a GPU: replay forward and backward as a CUDA graph, captured after some steps");
ABSL_FLAG(bool, fused_norm, true,
          "on a GPU with --channels_last: compute batch normalisation, addition and ReLU as one "
          "operation, and a ResNet's pooling and first convolution in ways of our own");
ABSL_FLAG(bool, weight_copies, true,
          "with bf16 and fp16: round weights once in a step, instead of in each forward");
ABSL_FLAG(bool, tf32, false, "let a GPU compute fp32 convolutions and matrix products in TF32");
ABSL_FLAG(bool, allow_nonfinite, false,
          "go on when the loss or the parameters are infinite or NaN, instead of failing");
ABSL_FLAG(int, threads, 1, "compute threads of this worker, at most 1024");
ABSL_FLAG(bool, cudnn_benchmark, gradsync::TrainerOptions().cudnn_benchmark,
          "on a GPU: let cuDNN time its algorithms at the first step and take the fastest");
ABSL_FLAG(int, loader_threads, 0,
          "threads that prepare batches; 0: one at first, or on a GPU the worker's share of the "
          "cores but one, at most 8, and more, up to that share, while steps wait for data");
ABSL_FLAG(gradsync::ByteSize, bucket_bytes, gradsync::ByteSize{25 << 20},
          "upper bound of a gradient bucket; a larger tensor has a bucket of its own");
ABSL_FLAG(gradsync::ByteSize, first_bucket_bytes, gradsync::ByteSize{1 << 20},
          "upper bound of the first bucket");
ABSL_FLAG(
    gradsync::ByteSize, chunk_bytes, gradsync::ByteSize{},
    "upper bound of a chunk; 0: by bucket size and world size, 32KiB to 96KiB where ranks are on "
    "several hosts");

ABSL_FLAG(std::string, optimizer, "sgd", "optimizer: sgd, adam or adamw");
ABSL_FLAG(double, momentum, 0.9, "momentum of sgd, at least 0 and less than 1");
ABSL_FLAG(bool, nesterov, false, "use Nesterov's momentum with sgd");
ABSL_FLAG(
    absl::optional<double>, weight_decay, absl::nullopt,
    "L2 penalty (sgd, adam) or decoupled decay (adamw); empty: sgd 0.0005, adam 0, adamw 0.01");
ABSL_FLAG(std::vector<std::string>, no_weight_decay, {},
          "parameters without weight decay: norm (of normalisation layers), bias, vectors (all of "
          "fewer than 2 dimensions), or names of parameters, in which * stands for anything");
ABSL_FLAG(double, max_norm, 0, "clip gradients to this global norm; 0: do not clip");
ABSL_FLAG(int64_t, accumulate, gradsync::TrainerOptions().accumulate,
          "batches of --batch_size per optimizer step of a worker, whose gradients are averaged "
          "before they are exchanged; the last step of an epoch averages what is left of it");
ABSL_FLAG(double, label_smoothing, gradsync::TrainerOptions().label_smoothing,
          "share of each training target, 0 to 1, that is spread evenly over all classes");
ABSL_FLAG(
    bool, sync_batchnorm, false,
    "normalise by the moments of all workers' batches together, in every layer with BatchNorm; "
    "the workers then meet twice per layer and batch");
ABSL_FLAG(double, ema_decay, gradsync::TrainerOptions().ema_decay,
          "keep an exponential moving average of the weights with this decay per step, such as "
          "0.999, which evaluations, DIR/best and model_ema.pt of checkpoints are of; 0: none");
ABSL_FLAG(double, lr, 0.01, "learning rate");
ABSL_FLAG(std::string, lr_scaling, "none",
          "what the global batch (--batch_size, --accumulate and workers multiplied) does to --lr: "
          "none; linear, in proportion to --lr_reference_batch; or sqrt, by the root of that");
ABSL_FLAG(int64_t, lr_reference_batch, gradsync::RecipeOptions().reference_batch,
          "with --lr_scaling: the global batch, in samples, for which --lr is meant");
ABSL_FLAG(std::string, schedule, "constant",
          "how the learning rate changes: constant; step (--lr_milestones, --lr_gamma); cosine, "
          "from --lr at the end of the warm-up to --lr_final at the end of the job; or poly, to 0 "
          "there (--lr_power)");
ABSL_FLAG(std::vector<std::string>, lr_milestones, {},
          "with --schedule=step: when the learning rate drops, after steps (100,200) or epochs "
          "(30e,60e)");
ABSL_FLAG(double, lr_gamma, gradsync::RecipeOptions().gamma,
          "with --schedule=step: the factor by which each drop multiplies the learning rate");
ABSL_FLAG(double, lr_final, gradsync::RecipeOptions().final,
          "with --schedule=cosine: the learning rate at the end of the job");
ABSL_FLAG(double, lr_power, gradsync::RecipeOptions().power,
          "with --schedule=poly: the power of the share of steps that is left");
ABSL_FLAG(std::string, lr_warmup, "",
          "for how long the learning rate rises to --lr: steps (500) or epochs (5e)");
ABSL_FLAG(int64_t, lr_warmup_steps, 0, "steps over which the learning rate rises to --lr");
ABSL_FLAG(
    absl::optional<double>, lr_warmup_start, absl::nullopt,
    "share of the learning rate, 0 to 1, at the first step of the warm-up; empty: one part of "
    "as many as the warm-up has steps");

ABSL_FLAG(int, image_size, 0,
          "height and width of the samples of an image folder, at most 1024; 0: 224");
ABSL_FLAG(std::string, crop, "",
          "how samples are cut out of an image folder's images: resized (RandomResizedCrop, as for "
          "ImageNet) or padded (as for CIFAR-10); empty: resized");
ABSL_FLAG(
    bool, scaled_decoding, true,
    "decode JPEGs at an eighth, a quarter or half of their size where a sample needs no more; "
    "false: in full, for the very bytes of Python's Pillow");
ABSL_FLAG(std::string, sampler, "gradsync",
          "in which order samples come: gradsync, or pytorch, the order of its DistributedSampler");
ABSL_FLAG(gradsync::ByteSize, prefetch_bytes,
          gradsync::ByteSize{gradsync::TrainerOptions().prefetch_bytes},
          "memory for batches that are prepared ahead of the step, of 2 to 8 batches");
ABSL_FLAG(int64_t, skip_damaged, 0,
          "how many files of an image folder may be damaged: each is named, and the next file that "
          "can be read takes its place; 0: a damaged file ends the job");
ABSL_FLAG(
    bool, check_data, false,
    "read and decode every sample once, on --loader_threads threads (0: all cores), print all "
    "files that cannot be read, and end without training, with exit code 2 if there are any");

namespace gradsync {
namespace {

// More than any host's cores by far, and few enough to be started in no time.
constexpr int kMostThreads = 1024;

// Those of torch.optim for Adam and AdamW.
double DefaultWeightDecay(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return 5e-4;
    case OptimizerKind::kAdam:
      return 0;
    case OptimizerKind::kAdamW:
      return 1e-2;
  }
  return 0;
}

absl::StatusOr<OptimizerKind> KindFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_optimizer);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    if (OptimizerKindName(kind) == name) return kind;
  }
  return FlagError("optimizer", "sgd, adam or adamw", name);
}

// What OptimizerSpec::Validate() would refuse by its own names, and a momentum by which steps grow
// for ever.
absl::Status CheckGroup(OptimizerKind kind, const OptimizerGroup& group) {
  if (!(group.weight_decay >= 0 && std::isfinite(group.weight_decay))) {
    return FlagError("weight_decay", "a finite number of at least 0",
                     absl::StrCat(group.weight_decay));
  }
  if (kind != OptimizerKind::kSgd) return absl::OkStatus();
  if (!(group.momentum >= 0 && group.momentum < 1)) {
    return FlagError("momentum", "at least 0 and less than 1", absl::StrCat(group.momentum));
  }
  if (group.nesterov && group.momentum == 0) {
    return FlagError("momentum", "above 0 with --nesterov", "0");
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimizerSpec> OptimizerFromFlags() {
  OptimizerSpec spec;
  GS_ASSIGN_OR_RETURN(spec.kind, KindFromFlag());
  OptimizerGroup group;
  group.weight_decay = absl::GetFlag(FLAGS_weight_decay).value_or(DefaultWeightDecay(spec.kind));
  group.momentum = absl::GetFlag(FLAGS_momentum);
  group.nesterov = absl::GetFlag(FLAGS_nesterov);
  GS_RETURN_IF_ERROR(CheckGroup(spec.kind, group));
  spec.groups.push_back(group);
  return spec;
}

absl::Status LearningRateFromFlags(RecipeOptions* recipe) {
  GS_ASSIGN_OR_RETURN(recipe->schedule, ParseSchedule(absl::GetFlag(FLAGS_schedule)));
  recipe->base = absl::GetFlag(FLAGS_lr);
  GS_ASSIGN_OR_RETURN(recipe->scaling, ParseRateScaling(absl::GetFlag(FLAGS_lr_scaling)));
  recipe->reference_batch = absl::GetFlag(FLAGS_lr_reference_batch);
  recipe->gamma = absl::GetFlag(FLAGS_lr_gamma);
  recipe->final = absl::GetFlag(FLAGS_lr_final);
  recipe->power = absl::GetFlag(FLAGS_lr_power);
  GS_RETURN_IF_ERROR(ParseMilestones(absl::GetFlag(FLAGS_lr_milestones), recipe));
  recipe->warmup_steps = absl::GetFlag(FLAGS_lr_warmup_steps);
  GS_RETURN_IF_ERROR(ParseWarmUp(absl::GetFlag(FLAGS_lr_warmup), recipe));
  recipe->warmup_start = absl::GetFlag(FLAGS_lr_warmup_start);
  return absl::OkStatus();
}

constexpr int kLargestImage = 1024;

absl::Status ImagesFromFlags(ImageFolderOptions* images) {
  const int size = absl::GetFlag(FLAGS_image_size);
  if (size < 0 || size > kLargestImage) {
    return FlagError("image_size", absl::StrCat("0 to ", kLargestImage), absl::StrCat(size));
  }
  if (size != 0) images->image_size = size;
  const std::string crop = absl::GetFlag(FLAGS_crop);
  if (crop == "padded") {
    images->crop = ImageCrop::kPadded;
  } else if (!crop.empty() && crop != "resized") {
    return FlagError("crop", "resized or padded", crop);
  }
  images->scaled_decoding = absl::GetFlag(FLAGS_scaled_decoding);
  if (absl::GetFlag(FLAGS_skip_damaged) < 0) {
    return FlagError("skip_damaged", "at least 0", absl::StrCat(absl::GetFlag(FLAGS_skip_damaged)));
  }
  return absl::OkStatus();
}

struct Tally {
  int64_t samples = 0;
  size_t unreadable = 0;
  size_t warnings = 0;
};

void Print(const std::string& line) { std::printf("%s\n", line.c_str()); }

absl::Status CheckSplit(const TrainerOptions& options, Split split, Tally* tally) {
  DatasetOptions dataset = options.dataset;
  dataset.skip_damaged = 0;
  dataset.images.list_irregular_files = true;
  const absl::StatusOr<JobData> data = OpenJobData(options.model, options.data, split, dataset);
  if (split == Split::kTest && absl::IsNotFound(data.status())) {
    Print(absl::StrCat("no test split: ", data.status().message()));
    return absl::OkStatus();
  }
  GS_RETURN_IF_ERROR(data.status());
  tally->samples += data->size();
  if (data->images == nullptr) return absl::OkStatus();  // Tokens are bytes that were mapped.
  for (const std::string& line : data->images->remarks()) Print(line);
  const int threads =
      options.loader_threads > 0 ? options.loader_threads : std::max(1, AvailableCores());
  GS_ASSIGN_OR_RETURN(const SampleReport report, CheckSamples(*data->images, threads));
  for (const std::string& line : report.warnings) {
    PrintNotice("worker", absl::StrCat("read, as Pillow reads it, with a warning: ", line));
  }
  for (const std::string& line : report.unreadable) PrintError("worker", line);
  tally->unreadable += report.unreadable.size();
  tally->warnings += report.warnings.size();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainerOptions> TrainerOptionsFromFlags() {
  TrainerOptions options;
  options.model.name = absl::GetFlag(FLAGS_model);
  options.model.stem = absl::GetFlag(FLAGS_stem);
  SetModelFlags(&options.model);
  options.data = UserData(absl::GetFlag(FLAGS_data));
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  GS_RETURN_IF_ERROR(RecipeFromFlags(&options));
  options.seed = absl::GetFlag(FLAGS_seed);
  GS_ASSIGN_OR_RETURN(options.compute.precision, ParsePrecision(absl::GetFlag(FLAGS_precision)));
  options.compute.channels_last = absl::GetFlag(FLAGS_channels_last);
  options.cuda_graph = absl::GetFlag(FLAGS_cuda_graph);
  options.compute.fused_norm = absl::GetFlag(FLAGS_fused_norm);
  options.compute.weight_copies = absl::GetFlag(FLAGS_weight_copies);
  options.allow_tf32 = absl::GetFlag(FLAGS_tf32);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.cudnn_benchmark = absl::GetFlag(FLAGS_cudnn_benchmark);
  options.loader_threads = absl::GetFlag(FLAGS_loader_threads);
  options.allow_nonfinite = absl::GetFlag(FLAGS_allow_nonfinite);
  options.evaluate = absl::GetFlag(FLAGS_evaluate);
  options.evaluate_every = absl::GetFlag(FLAGS_evaluate_every);
  options.plan.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes).bytes;
  options.plan.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes).bytes;
  options.plan.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes).bytes;
  GS_ASSIGN_OR_RETURN(options.straggler, Straggler::Parse(absl::GetFlag(FLAGS_straggler)));
  if (options.threads < 1 || options.threads > kMostThreads) {
    return FlagError("threads", absl::StrCat("1 to ", kMostThreads), absl::StrCat(options.threads));
  }
  if (options.plan.bucket_bytes < 1) {
    return FlagError("bucket_bytes", "at least 1", absl::StrCat(options.plan.bucket_bytes));
  }
  if (options.plan.first_bucket_bytes < 1) {
    return FlagError("first_bucket_bytes", "at least 1",
                     absl::StrCat(options.plan.first_bucket_bytes));
  }
  if (options.loader_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--loader_threads: expected at least 0, found ", options.loader_threads));
  }
  return options;
}

absl::Status ResolveRecipeDefaults(std::vector<FlagRecord>* flags) {
  if (absl::GetFlag(FLAGS_weight_decay).has_value()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const OptimizerKind kind, KindFromFlag());
  absl::SetFlag(&FLAGS_weight_decay, DefaultWeightDecay(kind));
  for (FlagRecord& flag : *flags) {
    if (flag.name == "weight_decay") flag.value = FlagValues().at("weight_decay");
  }
  return absl::OkStatus();
}

absl::Status RecipeFromFlags(TrainerOptions* options) {
  GS_ASSIGN_OR_RETURN(options->optimizer, OptimizerFromFlags());
  options->no_weight_decay = absl::GetFlag(FLAGS_no_weight_decay);
  options->max_norm = absl::GetFlag(FLAGS_max_norm);
  options->accumulate = absl::GetFlag(FLAGS_accumulate);
  options->label_smoothing = absl::GetFlag(FLAGS_label_smoothing);
  options->sync_batchnorm = absl::GetFlag(FLAGS_sync_batchnorm);
  options->ema_decay = absl::GetFlag(FLAGS_ema_decay);
  return LearningRateFromFlags(&options->recipe);
}

absl::Status CheckRecipe(const JobSpec& job, int world_size, const TrainerOptions& options) {
  const std::string consistency = ConsistencyName(job.consistency);
  const bool one_pace = job.consistency.bulk();
  if (options.sync_batchnorm && job.topology == Topology::kLocal && world_size > 1) {
    return FlagError("sync_batchnorm", "false with --topology=local, where workers do not meet",
                     "true");
  }
  if (options.sync_batchnorm && !one_pace) {
    return FlagError("sync_batchnorm",
                     absl::StrCat("false with --consistency=", consistency,
                                  ", where workers do not go at one pace"),
                     "true");
  }
  if (options.ema_decay > 0 && !one_pace) {
    return FlagError("ema_decay",
                     absl::StrCat("0 with --consistency=", consistency,
                                  ", where workers have other weights during training"),
                     absl::StrCat(options.ema_decay));
  }
  return absl::OkStatus();
}

absl::Status DataOptionsFromFlags(TrainerOptions* options) {
  GS_RETURN_IF_ERROR(ImagesFromFlags(&options->dataset.images));
  options->dataset.skip_damaged = absl::GetFlag(FLAGS_skip_damaged);
  GS_ASSIGN_OR_RETURN(options->sampler, ParseSampleOrder(absl::GetFlag(FLAGS_sampler)));
  options->prefetch_bytes = absl::GetFlag(FLAGS_prefetch_bytes).bytes;
  return absl::OkStatus();
}

bool WantsDataCheck() { return absl::GetFlag(FLAGS_check_data); }

int CheckData(const TrainerOptions& options) {
  Tally tally;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const absl::Status checked = CheckSplit(options, split, &tally);
    if (checked.ok()) continue;
    PrintError("worker", checked.ToString());
    return 2;
  }
  Print(absl::StrCat("read ", tally.samples, " samples: ", tally.unreadable, " cannot be read, ",
                     tally.warnings, " are read with a warning"));
  return tally.unreadable == 0 ? 0 : 2;
}

}  // namespace gradsync
