#include "sync/flat_buckets.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "ATen/ops/from_blob.h"

namespace gradsync {
namespace {

constexpr size_t kAlignment = 64;
// A GPU's driver pins pages, and each once only: they must not be shared with anybody else.
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::vector<GradBucket> AllocateBuckets(const Plan& plan) {
  const auto bytes_of = [](const BucketPlan& bucket) {
    return RoundUp(static_cast<size_t>(bucket.numel) * sizeof(float), kAlignment);
  };
  size_t bytes = kAlignment;
  for (const BucketPlan& bucket : plan.buckets()) bytes += 2 * bytes_of(bucket);
  bytes = RoundUp(bytes, kPage);
  const std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(kPage, bytes)),
                                     [](char* m) { std::free(m); });
  std::memset(memory.get(), 0, bytes);
  size_t offset = 0;
  const auto flat = [&](const BucketPlan& bucket) {
    char* const data = memory.get() + offset;
    offset += bytes_of(bucket);
    return at::from_blob(
        data, {bucket.numel}, [memory](void*) {}, at::kFloat);
  };
  std::vector<GradBucket> buckets;
  for (const BucketPlan& bucket : plan.buckets()) {
    at::Tensor grad = flat(bucket);
    buckets.push_back({std::move(grad), flat(bucket)});
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
