#include "worker/models/pooled_moments.h"

#include "ATen/TensorOperators.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

constexpr double kMomentum = 0.1;

}  // namespace

void PooledMoments::Add(const at::Tensor& mean, const at::Tensor& variance, double count) {
  c10::NoGradGuard no_grad;
  const at::Tensor own = mean.to(at::kDouble);
  const at::Tensor squares = variance.to(at::kDouble) * (count - 1);
  if (count_ == 0) {
    mean_ = own;
    squares_ = squares;
    count_ = count;
    return;
  }
  const at::Tensor off = own - mean_;
  const double share = count / (count_ + count);
  squares_ = squares_ + squares + off * off * (count_ * share);
  mean_ = mean_ + off * share;
  count_ += count;
}

void PooledMoments::Update(const NormTensors& tensors) {
  if (count_ == 0) return;
  c10::NoGradGuard no_grad;
  tensors.num_batches_tracked.add_(1);
  const auto update = [](const at::Tensor& buffer, const at::Tensor& value) {
    buffer.mul_(1 - kMomentum).add_(value.to(buffer.scalar_type()), kMomentum);
  };
  update(tensors.running_mean, mean_);
  update(tensors.running_var, squares_ / (count_ - 1));
  count_ = 0;
}

}  // namespace gradsync
