// Which server owns which chunk, in which order workers push them, and how many may be under way,
// over how many streams.
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

// Chunks that a worker may push on each stream ahead of a stripe's results (PushLeads()). More let
// workers get further out of step (docs/internals/grpc_link.md); fewer leave streams without chunks.
constexpr int kPsLead = 2;

// Folded chunks for which a server returns credit in one message: half of the credit.
inline int CreditBatch(int credit) { return credit > 1 ? credit / 2 : 1; }

// By server: chunks that a worker may have pushed to it without the result.
//
// A result is out when all workers have pushed their part, so a worker that runs ahead of the
// slowest only takes the server's interface from it, and results come later. Workers are therefore
// held together by results, not by what the server has taken from them (docs/internals/grpc_link.md).
//
// Workers push the chunks of a stripe in different orders, so no result of a stripe is certain
// before all have pushed all of it; a server must grant the most chunks that it owns of one stripe,
// or all could wait for each other. With that much they cannot: whoever has pushed least has pushed
// a whole stripe more than there are results. On top come `per_stream` chunks, at least 1, for each
// of the server's `streams` (StreamsByServer()): those that are on their way, and those
// that have arrived and wait for other workers' parts. Pure, thread-safe.
std::vector<int> PushLeads(const Plan& plan, const ShardMap& shards,
                           const std::vector<int>& streams, int per_stream);

// Chunks that a server may have to hold for a worker that keeps to a lead of `lead`, credit for
// folded ones returning in batches of half of this: it never waits for credit.
inline int CreditFor(int lead) { return 2 * lead; }

// How many streams each worker has to each server. Streams share an interface evenly, whatever they
// carry; so where servers own different shares (mixed placement) those that own more get more
// streams: the lightest one, the others in proportion, at most 4. Otherwise chunks for light
// servers would run ahead of those for heavy ones, which decide when the exchange ends: 28 to 45 %
// later than necessary in simulation (docs/compare/cost_model.md). With equal weights every server has
// `connections`. `weights` are ShardMap's. Pure, thread-safe.
std::vector<int> StreamsByServer(const std::vector<double>& weights, int connections);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_SHARD_MAP_H_
