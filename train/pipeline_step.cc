#include "train/pipeline_step.h"

#include "ATen/ops/stack.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/loss.h"

namespace gradsync {

at::Tensor PipelineLoss::Objective(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor loss = CrossEntropy(logits, labels, step_.label_smoothing);
  sum_.Add({loss.detach(), CorrectPredictions(logits, labels).to(at::kFloat)});
  return step_.micro_batches > 1 ? loss / static_cast<double>(step_.micro_batches) : loss;
}

at::Tensor PipelineLoss::Figures() {
  const BatchFigures figures = sum_.OfStep();
  return at::stack({figures.loss.reshape({}), figures.correct.reshape({})});
}

absl::StatusOr<BatchFigures> PipelineLoss::Read(const at::Tensor& figures) {
  if (figures.numel() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the figures of a step: expected 2, found ", figures.numel()));
  }
  return BatchFigures{figures[0], figures[1]};
}

}  // namespace gradsync
