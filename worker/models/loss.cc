#include "worker/models/loss.h"

#include "ATen/core/Reduction.h"
#include "ATen/ops/argmax.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/eq.h"
#include "ATen/ops/sum.h"
#include "c10/core/GradMode.h"

namespace gradsync {

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                        double label_smoothing) {
  const bool positions = logits.dim() == 3;
  return at::cross_entropy_loss(positions ? logits.flatten(0, 1) : logits,
                                positions ? labels.flatten() : labels, /*weight=*/{},
                                at::Reduction::Mean, /*ignore_index=*/-100, label_smoothing);
}

at::Tensor CorrectPredictions(const at::Tensor& logits, const at::Tensor& labels) {
  c10::NoGradGuard no_grad;
  return at::sum(at::eq(at::argmax(logits, -1), labels));
}

int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels) {
  return CorrectPredictions(logits, labels).item<int64_t>();
}

}  // namespace gradsync
