// Where things lie, and whose they are, when ranks of one host fold each other's buckets in the
// memory of their GPUs (docs/internals/cuda_ipc.md). Arithmetic alone.

#ifndef GRADSYNC_ALLREDUCE_IPC_LAYOUT_H_
#define GRADSYNC_ALLREDUCE_IPC_LAYOUT_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/gpu/kernel_operands.h"
#include "core/group/wire_stats.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// One region of device memory per rank, the same in all: every bucket's gradient, then every
// bucket's parameters, each from a multiple of 256 bytes on. Every chunk has one owner, which alone
// folds it; bits do not depend on who that is. Immutable, hence thread-safe.
class IpcLayout {
 public:
  // Rank c owns chunk c of each stripe, as a ring ends them.
  static IpcLayout OfRing(const Plan& plan) { return IpcLayout(plan, absl::nullopt); }

  // The first `owners` ranks own chunks as that many servers of equal weight would; 0: all ranks.
  // Errors: INVALID_ARGUMENT for fewer than 0 or more than there are ranks.
  static absl::StatusOr<IpcLayout> OfServers(const Plan& plan, int owners);

  const Plan& plan() const { return plan_; }
  int ranks() const { return plan_.world_size(); }
  int buckets() const { return static_cast<int>(plan_.buckets().size()); }

  // In bytes. The region fills whole pages to share (GpuApi::kSharedPage).
  size_t grad_offset(int bucket) const { return grads_[bucket]; }
  size_t param_offset(int bucket) const { return params_[bucket]; }
  size_t bytes() const { return bytes_; }

  // Rank that owns the chunk.
  int owner(ChunkId chunk) const;

  // What `rank` folds of a bucket, none of it empty, in order.
  std::vector<FoldPiece> Pieces(int bucket, int rank) const;

  // The chunks that `rank` owns of a bucket, none of them empty, in order. Pieces() are the same,
  // joined where neighbours are folded in the same order.
  std::vector<ChunkId> Chunks(int bucket, int rank) const;

  // Chunks that the rank with the most of them owns in all buckets.
  size_t MostChunks() const;

  // Ranks that own any of a bucket, in order.
  std::vector<int> Owners(int bucket) const;

  // What crosses from and to other ranks' memory in one exchange of a bucket, as seen by `rank`, a
  // message per chunk and pair: an owner reads a chunk from each other rank and stores the result
  // there. Between GPUs both cross the wire, and with chunks of equal size it is what a ring, or
  // parameter servers on the first ranks' hosts, would send.
  WireStats Traffic(int bucket, int rank) const;

  // The same of one broadcast of all parameters: every other rank reads rank 0's.
  WireStats BroadcastTraffic(int rank) const;

 private:
  IpcLayout(const Plan& plan, absl::optional<ShardMap> shards);

  Plan plan_;
  absl::optional<ShardMap> shards_;  // none: a ring
  std::vector<size_t> grads_;        // by bucket
  std::vector<size_t> params_;       // by bucket
  size_t bytes_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_LAYOUT_H_
