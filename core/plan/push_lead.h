// How far a worker may push ahead of the results.

#ifndef GRADSYNC_CORE_PLAN_PUSH_LEAD_H_
#define GRADSYNC_CORE_PLAN_PUSH_LEAD_H_

#include <vector>

#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

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
// of the server's `streams` (core/plan/server_streams.h): those that are on their way, and those
// that have arrived and wait for other workers' parts. Pure, thread-safe.
std::vector<int> PushLeads(const Plan& plan, const ShardMap& shards,
                           const std::vector<int>& streams, int per_stream);

// Chunks that a server may have to hold for a worker that keeps to a lead of `lead`, credit for
// folded ones returning in batches of half of this: it never waits for credit.
inline int CreditFor(int lead) { return 2 * lead; }

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PUSH_LEAD_H_
