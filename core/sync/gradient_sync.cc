#include "core/sync/gradient_sync.h"

namespace gradsync {
namespace {

absl::Status NoShards() {
  return absl::FailedPreconditionError(
      "parameters that owners keep: expected a backend that can, and a plan with slots of "
      "parameters");
}

}  // namespace

std::vector<BucketMemory> MemoryOf(const std::vector<GradBucket>& buckets) {
  std::vector<BucketMemory> memory;
  for (const GradBucket& bucket : buckets) {
    memory.push_back({bucket.grad.floats(), bucket.param.floats(), bucket.grad.numel});
  }
  return memory;
}

SyncHandle GradientSync::Gather(int) { return ResolvedHandle(NoShards()); }

absl::Status GradientSync::StoreParameters(int, Deadline) { return NoShards(); }

}  // namespace gradsync
