// How many chunks may be under way, over how many streams. Backends and the simulator read the same
// numbers.

#ifndef GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_
#define GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_

#include <vector>

#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Tokens that a rank of a ring has initiated and not got back.
constexpr int kRingLead = 8;

// Chunks that a worker may push on each stream ahead of a stripe's results (PushLeads()). More let
// workers get further out of step (docs/grpc_link.md); fewer leave streams without chunks.
constexpr int kPsLead = 2;

// Folded chunks for which a server returns credit in one message: half of the credit.
inline int CreditBatch(int credit) { return credit > 1 ? credit / 2 : 1; }

// How far a worker may push ahead of the results.

// By server: chunks that a worker may have pushed to it without the result.
//
// A result is out when all workers have pushed their part, so a worker that runs ahead of the
// slowest only takes the server's interface from it, and results come later. Workers are therefore
// held together by results, not by what the server has taken from them (docs/grpc_link.md).
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
// later than necessary in simulation (docs/cost_model.md). With equal weights every server has
// `connections`. `weights` are ShardMap's. Pure, thread-safe.
std::vector<int> StreamsByServer(const std::vector<double>& weights, int connections);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_
