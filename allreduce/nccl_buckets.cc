#include "allreduce/nccl_buckets.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"

namespace gradsync {
namespace {

constexpr int64_t kPieceFloats = 16;
constexpr int64_t kBufferFloats = 64;  // each buffer begins at a multiple of 256 bytes

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

ElementRange NcclBucket::range(int rank) const {
  return {std::min(numel, rank * piece), std::min(numel, (rank + 1) * piece)};
}

absl::StatusOr<std::shared_ptr<const NcclBuckets>> NcclBuckets::Create(std::shared_ptr<GpuApi> gpu,
                                                                       std::shared_ptr<NcclApi> api,
                                                                       const Plan& plan) {
  std::shared_ptr<NcclBuckets> made(new NcclBuckets(std::move(gpu), std::move(api)));
  const int64_t ranks = plan.world_size();
  int64_t floats = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    const int64_t piece = RoundUp((bucket.numel + ranks - 1) / ranks, kPieceFloats);
    made->buckets_.push_back({nullptr, nullptr, bucket.numel, piece});
    floats += 2 * RoundUp(ranks * piece, kBufferFloats);
  }
  made->bytes_ = static_cast<size_t>(floats) * sizeof(float);
  const absl::Status allocated =
      NcclStatus(made->api_->MemAlloc(made->bytes_, &made->memory_),
                 absl::StrCat("ncclMemAlloc of ", made->bytes_, " bytes"), "");
  // NCCL says no more than that CUDA refused.
  if (!allocated.ok()) return absl::ResourceExhaustedError(allocated.message());
  float* next = static_cast<float*>(made->memory_);
  for (float* NcclBucket::*which : {&NcclBucket::grad, &NcclBucket::param}) {
    for (NcclBucket& bucket : made->buckets_) {
      bucket.*which = next;
      next += RoundUp(ranks * bucket.piece, kBufferFloats);
    }
  }
  return made;
}

NcclBuckets::~NcclBuckets() {
  if (memory_ == nullptr) return;
  // Nobody is left to tell of failures. A device that met one runs nothing any more.
  gpu_->SynchronizeDevice().IgnoreError();
  static_cast<void>(api_->MemFree(memory_));
}

NcclShares PiecesAsShares(const NcclBuckets& buckets, int world_size) {
  NcclShares shares;
  for (const NcclBucket& bucket : buckets.all()) {
    std::vector<NcclShare>& of_bucket = shares.emplace_back();
    for (int rank = 0; rank < world_size; ++rank) {
      if (!bucket.range(rank).empty()) of_bucket.push_back({bucket.range(rank), rank});
    }
  }
  return shares;
}

NcclShares ChunksAsShares(const Plan& plan, int owners) {
  // Only without a server, or with a weight of 0, there is no map.
  const ShardMap map =
      *ShardMap::Create(plan, std::vector<double>(static_cast<size_t>(owners), 1.0));
  NcclShares shares;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    std::vector<NcclShare>& of_bucket = shares.emplace_back();
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const ElementRange range = layout.range(slot);
      if (!range.empty()) of_bucket.push_back({range, map.server({b, slot})});
    }
  }
  return shares;
}

NcclShares Joined(const NcclShares& shares) {
  NcclShares joined;
  for (const std::vector<NcclShare>& of_bucket : shares) {
    std::vector<NcclShare>& runs = joined.emplace_back();
    for (const NcclShare& share : of_bucket) {
      if (!runs.empty() && runs.back().owner == share.owner &&
          runs.back().range.end == share.range.begin) {
        runs.back().range.end = share.range.end;
      } else {
        runs.push_back(share);
      }
    }
  }
  return joined;
}

}  // namespace gradsync
