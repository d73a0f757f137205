#include "sync/flat_buckets.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ATen/ops/from_blob.h"

namespace gradsync {
namespace {

at::Tensor AllocateFlat(int64_t numel) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = std::max<size_t>(numel * sizeof(float), 1);
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(memory, 0, bytes);
  return at::from_blob(
      memory, {numel}, [](void* p) { std::free(p); }, at::kFloat);
}

}  // namespace

std::vector<GradBucket> AllocateBuckets(const Plan& plan) {
  std::vector<GradBucket> buckets;
  for (const BucketPlan& bucket : plan.buckets()) {
    buckets.push_back({AllocateFlat(bucket.numel), AllocateFlat(bucket.numel)});
  }
  return buckets;
}

std::vector<BucketMemory> MemoryOf(const std::vector<GradBucket>& buckets) {
  std::vector<BucketMemory> memory;
  for (const GradBucket& bucket : buckets) {
    memory.push_back(
        {bucket.grad.data_ptr<float>(), bucket.param.data_ptr<float>(), bucket.grad.numel()});
  }
  return memory;
}

}  // namespace gradsync
