// Which server owns which chunk.
//
// Chunks go to servers by weighted round robin in the global order of buckets and slots, and the
// state of the round robin carries on from one bucket to the next, so that every server's bytes are
// within one chunk of its share when weights are equal, whatever the buckets' sizes are, and within
// its share of (servers - 1) chunks otherwise. (Starting anew in each stripe would load the first
// servers more: with 3 servers and 4 workers the busiest would hold 2/4 of the bytes instead of
// 1/3.)

#ifndef GRADSYNC_CORE_PLAN_SHARD_MAP_H_
#define GRADSYNC_CORE_PLAN_SHARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace gradsync {

// Immutable after creation, hence thread-safe.
class ShardMap {
 public:
  ShardMap() = default;

  // `weights` has one positive number per server, in any unit. Takes a time of
  // O((chunks + servers) log servers + buckets * different weights).
  // Errors: INVALID_ARGUMENT if it is empty or has a weight that is not positive and finite.
  static absl::StatusOr<ShardMap> Create(const Plan& plan, const std::vector<double>& weights);

  int servers() const { return static_cast<int>(bytes_.size()); }

  // Server of the chunk; of an empty one, which is never sent, server 0.
  int server(ChunkId id) const { return owners_[id.bucket][id.slot]; }

  // Gradient bytes that the server owns.
  int64_t bytes(int server) const { return bytes_[server]; }

 private:
  std::vector<std::vector<int>> owners_;  // by bucket, by slot
  std::vector<int64_t> bytes_;            // by server
};

// Chunks that `rank` exchanges with `server` in one step, in the order in which it pushes them:
// buckets in index order, stripes in order, inside a stripe rank-1, rank-2, ... (see stripes.h).
// Empty chunks are left out. Both ends compute this list, so a chunk that comes at another place
// is an error that the receiver can name.
std::vector<ChunkId> PushOrder(const Plan& plan, const ShardMap& shards, int server, int rank);

// The same for all servers, by server, in one pass over the chunks.
std::vector<std::vector<ChunkId>> PushOrders(const Plan& plan, const ShardMap& shards, int rank);

// PushOrder() of all ranks for one server, in the memory of one list: all ranks go through the chunks
// of a stripe in the same cyclic order, each from a place of its own. Immutable, hence thread-safe.
class ServerPushOrder {
 public:
  ServerPushOrder() = default;

  // `of_rank_0`: that rank's PushOrder().
  ServerPushOrder(std::vector<ChunkId> of_rank_0, int world_size);

  size_t size() const { return chunks_.size(); }

  // Chunk number `number`, below size(), of `rank`'s order.
  ChunkId At(int rank, size_t number) const;

 private:
  int world_size_ = 1;
  std::vector<ChunkId> chunks_;   // as rank 0 pushes them
  std::vector<uint32_t> begins_;  // by chunk: number of the first one of its stripe
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_SHARD_MAP_H_
