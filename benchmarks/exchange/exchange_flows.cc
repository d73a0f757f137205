#include "benchmarks/exchange/exchange_flows.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "benchmarks/records/payload.h"

namespace gradsync {

absl::StatusOr<std::vector<Flow>> ExchangeFlows(const SyncBenchCase& bench_case) {
  GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(bench_case.exchange));
  return JobFlows(plan, bench_case.job, bench_case.weights);
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
