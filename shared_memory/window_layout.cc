#include "shared_memory/window_layout.h"

namespace gradsync {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

WindowLayout::WindowLayout(int64_t buckets, int64_t chunks, int64_t control_bytes)
    : progress_offset_(RoundUp(control_bytes, kLine)),
      squares_(chunks),
      squares_offset_(progress_offset_ + buckets * kLine),
      bytes_(RoundUp(squares_offset_ + chunks * static_cast<int64_t>(sizeof(double)), kPage)) {}

WindowLayout WindowLayout::OfServer(const Plan& plan, int64_t chunks, int64_t control_bytes) {
  return WindowLayout(static_cast<int64_t>(plan.buckets().size()), chunks, control_bytes);
}

WindowLayout::WindowLayout(const Plan& plan, int64_t control_bytes) {
  int64_t chunks = 0;
  for (const BucketPlan& bucket : plan.buckets()) chunks += bucket.layout.stripes();
  *this = WindowLayout(static_cast<int64_t>(plan.buckets().size()), chunks, control_bytes);
  for (const BucketPlan& bucket : plan.buckets()) {
    grads_.push_back(bytes_);
    bytes_ += RoundUp(bucket.bytes(), kPage);
    params_.push_back(bytes_);
    bytes_ += RoundUp(bucket.bytes(), kPage);
  }
}

int64_t WindowLayout::progress_offset(int bucket) const {
  return progress_offset_ + bucket * kLine;
}

}  // namespace gradsync
