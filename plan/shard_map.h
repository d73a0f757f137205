// Which server owns which chunk.
//
// Chunks go to servers by weighted round robin in the global order of buckets and slots, and the
// state of the round robin carries on from one bucket to the next, so that every server's bytes are
// within one chunk of its share when weights are equal, whatever the buckets' sizes are, and within
// its share of (servers - 1) chunks otherwise. (Starting anew in each stripe would load the first
// servers more: with 3 servers and 4 workers the busiest would hold 2/4 of the bytes instead of
// 1/3.)

#ifndef GRADSYNC_PLAN_SHARD_MAP_H_
#define GRADSYNC_PLAN_SHARD_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/plan.h"

namespace gradsync {

// One chunk of one bucket.
struct ChunkId {
  int bucket = 0;
  int slot = 0;

  friend bool operator==(ChunkId a, ChunkId b) { return a.bucket == b.bucket && a.slot == b.slot; }
};

// Immutable after creation, hence thread-safe.
class ShardMap {
 public:
  ShardMap() = default;

  // `weights` has one positive number per server, in any unit.
  // Errors: INVALID_ARGUMENT if it is empty or has a weight that is not positive and finite.
  static absl::StatusOr<ShardMap> Create(const Plan& plan, const std::vector<double>& weights);

  int servers() const { return static_cast<int>(bytes_.size()); }

  // Server of the chunk; an empty chunk has one too, but is never sent.
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

}  // namespace gradsync

#endif  // GRADSYNC_PLAN_SHARD_MAP_H_
