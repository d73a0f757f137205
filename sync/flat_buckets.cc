#include "sync/flat_buckets.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/available_memory.h"

namespace gradsync {
namespace {

constexpr size_t kAlignment = 64;
// A GPU's driver pins pages, and each once only: they must not be shared with anybody else.
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t BytesOf(const BucketPlan& bucket) {
  return RoundUp(static_cast<size_t>(bucket.numel) * sizeof(float), kAlignment);
}

absl::Status NoMemory(size_t bytes, absl::string_view found) {
  return absl::ResourceExhaustedError(
      absl::StrCat("buckets: expected ", bytes, " bytes of memory, found ", found));
}

std::vector<GradBucket> BucketsIn(const std::shared_ptr<char>& memory, const Plan& plan) {
  size_t offset = 0;
  const auto flat = [&](const BucketPlan& bucket) {
    char* const data = memory.get() + offset;
    offset += BytesOf(bucket);
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

}  // namespace

absl::StatusOr<std::vector<GradBucket>> AllocateBuckets(const Plan& plan) {
  size_t bytes = kAlignment;
  for (const BucketPlan& bucket : plan.buckets()) bytes += 2 * BytesOf(bucket);
  bytes = RoundUp(bytes, kPage);
  const uint64_t available = AvailableMemory();
  if (bytes > available) return NoMemory(bytes, absl::StrCat(available));
  try {
    const std::shared_ptr<char> memory(static_cast<char*>(std::aligned_alloc(kPage, bytes)),
                                       [](char* m) { std::free(m); });
    if (memory == nullptr) return NoMemory(bytes, "less, or a limit of this process");
    std::memset(memory.get(), 0, bytes);
    return BucketsIn(memory, plan);
  } catch (const std::exception& error) {
    return NoMemory(bytes, error.what());
  }
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
