#ifndef GRADSYNC_CORE_SYNC_FLAT_BUCKETS_H_
#define GRADSYNC_CORE_SYNC_FLAT_BUCKETS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Buckets in plain memory of this process: 64-byte aligned, zeroed, kept alive by the buffers, all
// of them by each, in as many slots as the plan has (core/plan/sharding.h). They fill pages of
// their own. Throws nothing. Errors: RESOURCE_EXHAUSTED, with how many bytes they are, when the
// host has not as many.
absl::StatusOr<std::vector<GradBucket>> AllocateBuckets(const Plan& plan);

// The raw memory of a bucket, for code that only computes. Does not own.
struct BucketMemory {
  float* grad = nullptr;
  float* param = nullptr;
  int64_t numel = 0;
};

std::vector<BucketMemory> MemoryOf(const std::vector<GradBucket>& buckets);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_FLAT_BUCKETS_H_
