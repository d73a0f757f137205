// What a job in stages is made of, whether they are ranks (pipeline_stage.h) or threads
// (local_pipeline.h): where the model is cut, and a step.

#ifndef GRADSYNC_WORKER_TRAIN_PIPELINE_STEP_H_
#define GRADSYNC_WORKER_TRAIN_PIPELINE_STEP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "worker/data/data_loader.h"
#include "worker/models/model.h"
#include "worker/pipeline/split.h"
#include "worker/train/batch_figures.h"
#include "worker/train/compute_options.h"

namespace gradsync {

// Where a model is cut into stages, and which parameters that gives to each.

// `text` as --split has it: the blocks before which stages begin, or `auto`, which computes forward
// and backward of each block of `model` with what `example` makes, a batch of the job's size whose
// values are of no matter, and makes the slowest stage as fast as can be. `model` is whole, and has
// no gradients afterwards. Errors: INVALID_ARGUMENT naming --split for blocks that the model does
// not have; INTERNAL when LibTorch throws.
absl::StatusOr<StageSplit> SplitModel(const std::string& text, int stages,
                                      const ComputeOptions& compute, Model& model,
                                      const std::function<at::Tensor()>& example);

// The stage of each trainable parameter, in the model's order. Errors: FAILED_PRECONDITION for a
// parameter that two stages would share; INVALID_ARGUMENT naming --split for a stage without any.
absl::StatusOr<std::vector<int>> StagesOfParameters(Model& model, const StageSplit& split);

// One step, and what the trainer wants to be asked.
struct PipelineStep {
  StepOptions options;
  int64_t micro_batches = 1;
  double label_smoothing = 0;
  // The micro-batch whose forward is next, in order.
  std::function<absl::StatusOr<Batch>(int64_t micro_batch)> next;
  // Of what is random in a micro-batch.
  std::function<uint64_t(int64_t micro_batch)> seed;
};

// The last stage's loss: the mean over micro-batches of their means, in the order and with the bits
// of one process that accumulates over the same batches (worker/train/recipe.h). Not
// thread-safe. Throws what LibTorch throws.
class PipelineLoss {
 public:
  explicit PipelineLoss(const PipelineStep& step) : step_(step) {}

  // StageWork::objective and StageWork::figures; the latter are a tensor of two.
  at::Tensor Objective(const at::Tensor& logits, const at::Tensor& labels);
  at::Tensor Figures();

  // What they say. Errors: INVALID_ARGUMENT for a tensor that is none of these.
  static absl::StatusOr<BatchFigures> Read(const at::Tensor& figures);

 private:
  const PipelineStep& step_;
  FigureSum sum_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_PIPELINE_STEP_H_
