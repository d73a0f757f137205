#include "worker/training_flags.h"

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/byte_sizes.h"
#include "core/base/errors.h"
#include "core/base/program_main.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "worker/model_flags.h"
#include "worker/models/model_table.h"
#include "worker/recipe_flags.h"
#include "worker/train/precision.h"

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

namespace gradsync {
namespace {

// More than any host's cores by far, and few enough to be started in no time.
constexpr int kMostThreads = 1024;

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

}  // namespace gradsync
