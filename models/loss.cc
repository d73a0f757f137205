#include "models/loss.h"

#include "ATen/ops/argmax.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/eq.h"
#include "ATen/ops/sum.h"
#include "c10/core/GradMode.h"

namespace gradsync {

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels) {
  if (logits.dim() == 3) return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
  return at::cross_entropy_loss(logits, labels);
}

int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels) {
  c10::NoGradGuard no_grad;
  return at::sum(at::eq(at::argmax(logits, -1), labels)).item<int64_t>();
}

}  // namespace gradsync
