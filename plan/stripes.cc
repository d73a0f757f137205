#include "plan/stripes.h"

#include <algorithm>

namespace gradsync {
namespace {

constexpr int64_t kAlignElements = 16;  // one cache line of floats, the widest vector

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

StripeLayout::StripeLayout(int64_t numel, int world_size, int64_t chunk_elements)
    : numel_(numel), world_size_(world_size) {
  if (numel == 0) return;
  stripes_ = static_cast<int>(DivideUp(numel, world_size * chunk_elements));
  const int64_t even = DivideUp(numel, static_cast<int64_t>(slots()));
  chunk_elements_ = DivideUp(even, kAlignElements) * kAlignElements;
}

ElementRange StripeLayout::range(int slot) const {
  return {std::min(numel_, slot * chunk_elements_), std::min(numel_, (slot + 1) * chunk_elements_)};
}

int64_t DefaultChunkBytes(int64_t bucket_bytes, int world_size) {
  constexpr int64_t kKiB = 1024;
  const int64_t raw = bucket_bytes / (16 * world_size) / (4 * kKiB) * (4 * kKiB);
  return std::clamp(raw, 64 * kKiB, 1024 * kKiB);
}

}  // namespace gradsync
