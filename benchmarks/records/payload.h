// What the processes of a job, and the hosts that they share, put on the wire per step. Pure
// functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_PAYLOAD_H_
#define GRADSYNC_BENCHMARKS_RECORDS_PAYLOAD_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/options/placed_job.h"
#include "core/plan/plan.h"
#include "core/plan/wire_traffic.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Bytes, of one process or host.
struct WirePayload {
  double tx_bytes = 0;
  double rx_bytes = 0;
};

// Tensors that passed between a rank and other stages or slices.
inline WirePayload PassedTensors(const proto::WorkerMetrics& rank) {
  return {rank.stage_tx_bytes_per_step() + rank.slice_tx_bytes_per_step(),
          rank.stage_rx_bytes_per_step() + rank.slice_rx_bytes_per_step()};
}
inline WirePayload PassedTensors(const proto::ExchangeMetrics&) { return {}; }

// What each process counted, ranks and then servers. `Metrics` is proto::WorkerMetrics or
// proto::ExchangeMetrics.
template <typename Metrics>
std::vector<WirePayload> CountedPayload(const std::vector<Metrics>& ranks,
                                        const std::vector<proto::ServerMetrics>& servers) {
  std::vector<WirePayload> counted;
  const auto add = [&counted](const auto& process) {
    counted.push_back({process.wire_tx_bytes_per_step(), process.wire_rx_bytes_per_step()});
  };
  for (const Metrics& rank : ranks) {
    add(rank);
    const WirePayload passed = PassedTensors(rank);
    counted.back().tx_bytes += passed.tx_bytes;
    counted.back().rx_bytes += passed.rx_bytes;
  }
  for (const proto::ServerMetrics& server : servers) add(server);
  return counted;
}

// What a step of such a job sends, by core/plan/wire_traffic.h; nothing where workers do not meet.
// Servers have `weights`, or if there are none those of their placement. Where owners alone keep
// parameters, a step has these `gathers` (GathersOfStep()). Errors: those of ShardMap::Create().
absl::StatusOr<std::vector<Flow>> JobFlows(const Plan& plan, const PlacedJob& job,
                                           const std::vector<double>& weights = {},
                                           const std::vector<int>& gathers = {});

// By host, of which `hosts[p]` is that of process p. Processes count what they send to others on
// their host too; the flows say how much of it that is.
std::vector<WirePayload> PayloadByHost(const std::vector<WirePayload>& processes,
                                       const std::vector<Flow>& flows,
                                       const std::vector<int>& hosts);

// Sets run.wire_*: the sum over `nodes`, and the most that one of them sends and receives.
void SetWire(const std::vector<WirePayload>& nodes, proto::Run* run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_PAYLOAD_H_
