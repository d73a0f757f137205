#include "plan/window_layout.h"

namespace gradsync {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

WindowLayout::WindowLayout(const Plan& plan, int64_t control_bytes) {
  for (const BucketPlan& bucket : plan.buckets()) squares_ += bucket.layout.stripes();
  squares_offset_ = RoundUp(control_bytes, kLine);
  bytes_ = RoundUp(squares_offset_ + squares_ * static_cast<int64_t>(sizeof(double)), kPage);
  for (const BucketPlan& bucket : plan.buckets()) {
    grads_.push_back(bytes_);
    bytes_ += RoundUp(bucket.bytes(), kPage);
    params_.push_back(bytes_);
    bytes_ += RoundUp(bucket.bytes(), kPage);
  }
}

}  // namespace gradsync
