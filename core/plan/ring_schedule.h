// The ring-allreduce as arithmetic: who sends which chunk when, to whom, and how many bytes that
// is.
//
// Ranks stand in a circle; each sends to the next and hears the previous. Every chunk of a stripe
// (stripes.h) is one *token* that goes round almost twice:
//
//   REDUCE  The initiator, rank chunk+1, sends its own gradient. Each rank that receives the sum so
//           far adds its own gradient and passes it on, until it reaches the owner, rank `chunk`,
//           which completes it: n-1 messages.
//   GATHER  The owner sends the finished chunk, and each rank keeps it and passes it on, until all
//           have it: n-1 messages.
//
// The n tokens of a stripe go round at the same time: rank r first sends chunk r-1, then r-2, ...
// (The textbook ring starts with chunk r, which ends on rank r-1 and is folded in another order.) A
// *hop* counts the ranks that a token has passed in its phase: the initiator's message has hop 1
// and holds one contribution, the owner's finished chunk has hop 1 too.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009. Pure functions, thread-safe. Ranks and chunks are in 0..world_size-1.

#ifndef GRADSYNC_CORE_PLAN_RING_SCHEDULE_H_
#define GRADSYNC_CORE_PLAN_RING_SCHEDULE_H_

#include <cstdint>

#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

inline int RingNext(int rank, int world_size) { return (rank + 1) % world_size; }
inline int RingPrevious(int rank, int world_size) { return (rank + world_size - 1) % world_size; }

// Tokens that a rank of a ring has initiated and not got back.
constexpr int kRingLead = 8;

// The chunk of each stripe that `rank` initiates, and the rank that initiates `chunk`.
inline int InitiatedChunk(int rank, int world_size) { return SendChunk(rank, 0, world_size); }
inline int Initiator(int chunk, int world_size) { return FoldRank(chunk, 0, world_size); }

// Hop of the REDUCE message in which `rank` receives `chunk`: 1..n-1, the number of contributions
// in it. 0 at the initiator, which receives none; at the owner n-1.
inline int ReduceHop(int chunk, int rank, int world_size) {
  return FoldPosition(chunk, rank, world_size);
}

// Hop of the GATHER message in which `rank` receives `chunk`: 1..n-1, the number of ranks that have
// it. 0 at the owner, which receives none; 1 at the initiator.
inline int GatherHop(int chunk, int rank, int world_size) {
  return (rank - chunk + world_size) % world_size;
}

// Whether `rank` passes the token on: the owner ends REDUCE, the owner's predecessor ends GATHER.
inline bool SendsReduce(int chunk, int rank) { return rank != chunk; }
inline bool SendsGather(int chunk, int rank, int world_size) {
  return GatherHop(chunk, rank, world_size) != world_size - 1;
}

// The chunk of each stripe that `rank` sends with `hop` (1..n-1) in each phase.
inline int ReduceSendChunk(int rank, int hop, int world_size) {
  return SendChunk(rank, hop - 1, world_size);
}
inline int GatherSendChunk(int rank, int hop, int world_size) {
  return (rank - hop + 1 + world_size) % world_size;
}

// Payload that one rank moves, in bytes and in messages that carry payload.
struct RingTraffic {
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
  int64_t tx_messages = 0;
  int64_t rx_messages = 0;

  friend bool operator==(const RingTraffic& a, const RingTraffic& b) {
    return a.tx_bytes == b.tx_bytes && a.rx_bytes == b.rx_bytes && a.tx_messages == b.tx_messages &&
           a.rx_messages == b.rx_messages;
  }
};

// What the exchange of one bucket costs `rank`: exact sums over its chunks, of which empty ones are
// never sent. Close to 2(n-1)/n of the bucket each way, and exactly that when all chunks have the
// same size and nothing is compressed. `returned` matters only with a codec.
RingTraffic BucketTraffic(const StripeLayout& layout, int rank, Codec codec = Codec(),
                          Returned returned = Returned::kMean);

// The same for all buckets of a step, with the plan's codec.
RingTraffic StepTraffic(const Plan& plan, int rank, Returned returned = Returned::kMean);

// Broadcast of all parameters from rank 0 down the ring: every rank but 0 receives them, every rank
// but the last sends them.
RingTraffic BroadcastTraffic(const Plan& plan, int rank);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_RING_SCHEDULE_H_
