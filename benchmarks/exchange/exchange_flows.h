#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_FLOWS_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_FLOWS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/network/tcp_flows.h"
#include "plan/wire_traffic.h"

namespace gradsync {

// What a measurement puts on the wire in one exchange, by plan/wire_traffic.h. Thread-safe.
// Errors: those of ExchangePlan() and ShardMap::Create().
absl::StatusOr<std::vector<Flow>> ExchangeFlows(const SyncBenchCase& bench_case);

// The same between hosts: `hosts[p]` is that of process p; what stays within one is left out, and
// there is at most one flow for each pair.
std::vector<TcpFlow> FlowsBetweenHosts(const std::vector<Flow>& flows,
                                       const std::vector<int>& hosts);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_FLOWS_H_
