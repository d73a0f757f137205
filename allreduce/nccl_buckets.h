#ifndef GRADSYNC_ALLREDUCE_NCCL_BUCKETS_H_
#define GRADSYNC_ALLREDUCE_NCCL_BUCKETS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "allreduce/nccl_api.h"
#include "core/gpu/gpu_api.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// A bucket's two buffers, each of world_size * piece floats: the plan's numel, then zeros. NCCL
// scatters and gathers pieces of one size, so that rank r owns the r-th piece and not, as in other
// backends, chunks all over the bucket.
struct NcclBucket {
  float* grad = nullptr;
  float* param = nullptr;
  int64_t numel = 0;
  int64_t piece = 0;  // a multiple of 16 floats

  // What rank `rank` owns of the plan's elements; empty where its piece is all padding.
  ElementRange range(int rank) const;
};

// The buckets of a plan in one piece of NCCL's memory, which can be registered as a whole. Zero at
// first. Immutable, hence thread-safe. Its owners keep it as long as anything is queued on streams
// of theirs; for what callers queued on others, through tensors, the destructor waits for the
// device.
class NcclBuckets {
 public:
  // Errors: RESOURCE_EXHAUSTED with the bytes and what NcclApi::MemAlloc() said.
  static absl::StatusOr<std::shared_ptr<const NcclBuckets>> Create(std::shared_ptr<GpuApi> gpu,
                                                                   std::shared_ptr<NcclApi> api,
                                                                   const Plan& plan);
  ~NcclBuckets();
  NcclBuckets(const NcclBuckets&) = delete;
  NcclBuckets& operator=(const NcclBuckets&) = delete;

  const std::vector<NcclBucket>& all() const { return buckets_; }
  const NcclBucket& operator[](int bucket) const { return buckets_[bucket]; }
  void* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  NcclBuckets(std::shared_ptr<GpuApi> gpu, std::shared_ptr<NcclApi> api)
      : gpu_(std::move(gpu)), api_(std::move(api)) {}

  const std::shared_ptr<GpuApi> gpu_;
  const std::shared_ptr<NcclApi> api_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<NcclBucket> buckets_;
};

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

#endif  // GRADSYNC_ALLREDUCE_NCCL_BUCKETS_H_
