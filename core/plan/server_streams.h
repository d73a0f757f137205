#ifndef GRADSYNC_CORE_PLAN_SERVER_STREAMS_H_
#define GRADSYNC_CORE_PLAN_SERVER_STREAMS_H_

#include <vector>

namespace gradsync {

// How many streams each worker has to each server. Streams share an interface evenly, whatever they
// carry; so where servers own different shares (mixed placement) those that own more get more
// streams: the lightest one, the others in proportion, at most 4. Otherwise chunks for light
// servers would run ahead of those for heavy ones, which decide when the exchange ends: 28 to 45 %
// later than necessary in simulation (docs/cost_model.md). With equal weights every server has
// `connections`. `weights` are ShardMap's. Pure, thread-safe.
std::vector<int> StreamsByServer(const std::vector<double>& weights, int connections);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_SERVER_STREAMS_H_
