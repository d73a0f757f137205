// What a step in stages is made of, whether they are ranks (pipeline_stage.h) or threads
// (local_pipeline.h).

#ifndef GRADSYNC_WORKER_TRAIN_PIPELINE_STEP_H_
#define GRADSYNC_WORKER_TRAIN_PIPELINE_STEP_H_

#include <cstdint>
#include <functional>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "core/plan/step_options.h"
#include "worker/data/data_loader.h"
#include "worker/train/batch_figures.h"

namespace gradsync {

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
// of one process that accumulates over the same batches (worker/train/accumulation.h). Not
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
