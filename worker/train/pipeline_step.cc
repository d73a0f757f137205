#include "worker/train/pipeline_step.h"

#include "ATen/ops/stack.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "worker/models/loss.h"

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
  if (figures.dim() != 1 || figures.numel() != 2 || figures.scalar_type() != at::kFloat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the figures of a step: expected 2 floats in a row, found ", figures.numel(), " of type ",
        c10::toString(figures.scalar_type()), " in ", figures.dim(), " dimensions"));
  }
  return BatchFigures{figures[0], figures[1]};
}

}  // namespace gradsync
