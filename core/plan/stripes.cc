#include "core/plan/stripes.h"

#include <algorithm>

namespace gradsync {
namespace {

constexpr int64_t kAlignElements = 16;  // one cache line of floats, the widest vector
constexpr int64_t kSmallestShare = 16;  // no chunk is made smaller than this part of a large one

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

StripeLayout::StripeLayout(int64_t numel, int world_size, int64_t chunk_elements)
    : numel_(numel), world_size_(world_size) {
  if (numel == 0) return;
  stripes_ = static_cast<int>(DivideUp(numel, world_size * chunk_elements));
  const int64_t even = DivideUp(numel, static_cast<int64_t>(slots()));
  const int64_t size = std::max(even, chunk_elements / kSmallestShare);
  chunk_elements_ = DivideUp(size, kAlignElements) * kAlignElements;
}

StripeLayout StripeLayout::OfRun(int64_t numel, int world_size, int64_t chunk_elements,
                                 int64_t lead) {
  StripeLayout layout;
  layout.numel_ = numel;
  layout.world_size_ = world_size;
  if (numel == 0) return layout;
  layout.stripes_ = static_cast<int>(DivideUp(lead + numel, world_size * chunk_elements));
  layout.chunk_elements_ = chunk_elements;
  layout.lead_ = lead;
  return layout;
}

StripeLayout StripeLayout::Run(ElementRange run) const {
  if (run.empty()) return OfRun(0, world_size_, chunk_elements_, 0);
  const int64_t begin = lead_ + run.begin;
  return OfRun(run.size(), world_size_, chunk_elements_, begin % (world_size_ * chunk_elements_));
}

int64_t DefaultChunkBytes(int64_t bucket_bytes, int world_size) {
  constexpr int64_t kKiB = 1024;
  const int64_t raw = bucket_bytes / (16 * world_size) / (4 * kKiB) * (4 * kKiB);
  return std::clamp(raw, 64 * kKiB, 1024 * kKiB);
}

int64_t NetworkChunkBytes(int64_t gradient_bytes, int world_size) {
  constexpr int64_t kKiB = 1024;
  const int64_t raw = gradient_bytes / (int64_t{80} * world_size) / (4 * kKiB) * (4 * kKiB);
  return std::clamp(raw, 32 * kKiB, 96 * kKiB);
}

}  // namespace gradsync
