#ifndef GRADSYNC_ALLREDUCE_NCCL_SHARES_H_
#define GRADSYNC_ALLREDUCE_NCCL_SHARES_H_

#include <vector>

#include "allreduce/nccl_buckets.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// A run of a bucket's elements that one rank owns: adds up, updates, and measures as one.
struct NcclShare {
  ElementRange range;
  int owner = 0;
};

// Of all buckets, by bucket and then in the order of elements. Every element is in one share, and
// no share is empty.
using NcclShares = std::vector<std::vector<NcclShare>>;

// The n-th of each bucket that NCCL scatters to each rank (NcclBucket::range).
NcclShares PiecesAsShares(const NcclBuckets& buckets, int world_size);

// The plan's chunks, each with one of `owners` servers, as parameter servers of equal weights have
// them (core/plan/shard_map.h); server i is rank i. `owners` is at least 1.
NcclShares ChunksAsShares(const Plan& plan, int owners);

// The same with neighbours of one owner joined, for what does not depend on where they are parted.
NcclShares Joined(const NcclShares& shares);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_SHARES_H_
