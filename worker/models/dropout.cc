#include "worker/models/dropout.h"

#include <cmath>
#include <utility>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/bitwise_right_shift.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/lt.h"
#include "ATen/ops/masked_fill.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"
#include "core/base/random.h"

namespace gradsync {
namespace {

// SplitMix64's step and finaliser (core/base/random.h), in the two's complement that LibTorch's
// int64 has.
constexpr int64_t kStep = static_cast<int64_t>(0x9e3779b97f4a7c15u);
constexpr int64_t kFirst = static_cast<int64_t>(0xbf58476d1ce4e5b9u);
constexpr int64_t kSecond = static_cast<int64_t>(0x94d049bb133111ebu);

// x ^ (x >> shift), where LibTorch's shift drags the sign along and SplitMix64's does not.
void FoldBits(at::Tensor& x, int64_t shift) {
  const int64_t without_sign = (int64_t{1} << (64 - shift)) - 1;
  x.bitwise_xor_(at::bitwise_right_shift(x, at::Scalar(shift)).bitwise_and_(without_sign));
}

// The index of each element of `x` in the whole of which it is a part; flat, and the caller's.
at::Tensor Indices(const at::Tensor& x, int64_t dimension, int64_t part, int64_t parts) {
  at::Tensor whole = at::arange(x.numel() * parts, x.options().dtype(at::kLong));
  if (parts == 1) return whole;
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t size = sizes[dimension];
  sizes[dimension] *= parts;
  return whole.view(sizes).narrow(dimension, part * size, size).flatten().clone();
}

// True with `probability`, for each element of `x`, whose Indices() are given.
at::Tensor Chosen(const at::Tensor& x, at::Tensor bits, const at::Tensor& seed, int64_t layer,
                  double probability) {
  bits.mul_(kStep);
  bits.add_(seed).add_(static_cast<int64_t>(MixBits(static_cast<uint64_t>(layer) + 1)));
  FoldBits(bits, 30);
  bits.mul_(kFirst);
  FoldBits(bits, 27);
  bits.mul_(kSecond);
  FoldBits(bits, 31);
  // The upper 53 bits as a number in [-2^52, 2^52): every double of them is exact.
  const int64_t bound = std::llround((2 * probability - 1) * std::ldexp(1.0, 52));
  return at::bitwise_right_shift(bits, at::Scalar(int64_t{11})).lt(bound).view(x.sizes());
}

}  // namespace

StepRandom::StepRandom() : seed_(at::zeros({}, at::kLong)) {}

std::shared_ptr<StepRandom> StepRandom::Apart() const {
  auto other = std::make_shared<StepRandom>();
  other->any_random_ = any_random_;
  return other;
}

void StepRandom::Begin(uint64_t seed, c10::Device device) {
  c10::NoGradGuard no_grad;
  if (seed_.device() != device) seed_ = at::empty({}, seed_.options().device(device));
  seed_.fill_(static_cast<int64_t>(seed));
}

Dropout::Dropout(double probability, std::shared_ptr<StepRandom> random)
    : probability_(probability),
      random_(std::move(random)),
      layer_(random_->AddLayer(probability > 0)) {}

at::Tensor Dropout::ForwardPart(const at::Tensor& x, int64_t dimension, int64_t part,
                                int64_t parts) const {
  if (!is_training() || probability_ == 0) return x;
  at::Tensor dropped;
  {
    const c10::NoGradGuard no_grad;
    dropped = Chosen(x, Indices(x, dimension, part, parts), random_->seed(), layer_, probability_);
  }
  return at::masked_fill(x, dropped, 0).mul(1 / (1 - probability_));
}

}  // namespace gradsync
