#include "allreduce/nccl_shares.h"

#include "core/plan/shard_map.h"

namespace gradsync {

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
