#include "benchmarks/exchange/exchange_flows.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "benchmarks/options/placement.h"
#include "plan/shard_map.h"

namespace gradsync {

absl::StatusOr<std::vector<Flow>> ExchangeFlows(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(bench_case.exchange));
  const Returned returned = bench_case.update == "owner" ? Returned::kParameters : Returned::kMean;
  if (bench_case.servers == 0) return RingStepFlows(plan, returned);
  GS_ASSIGN_OR_RETURN(
      const ShardMap shards,
      ShardMap::Create(plan, bench_case.weights.empty()
                                 ? PlacedWeights(bench_case.placement,
                                                 bench_case.exchange.world_size, bench_case.servers)
                                 : bench_case.weights));
  return PsStepFlows(plan, shards, returned);
}

std::vector<TcpFlow> FlowsBetweenHosts(const std::vector<Flow>& flows,
                                       const std::vector<int>& hosts) {
  std::map<std::pair<int, int>, int64_t> bytes;
  for (const Flow& flow : flows) {
    const std::pair<int, int> pair = {hosts[flow.from], hosts[flow.to]};
    if (pair.first != pair.second) bytes[pair] += flow.bytes;
  }
  std::vector<TcpFlow> between;
  for (const auto& [pair, sum] : bytes) between.push_back({pair.first, pair.second, sum});
  return between;
}

}  // namespace gradsync
