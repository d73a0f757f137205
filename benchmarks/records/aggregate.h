// From what each process of a job measured to one record of the job.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_
#define GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/options/placed_job.h"
#include "core/plan/plan.h"
#include "core/plan/wire_traffic.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What the processes of a job, and the hosts that they share, put on the wire per step. Pure
// functions, thread-safe.

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

// The value below which `fraction` (0 to 1) of `values` lie, linear between the two nearest; 0 for
// no values.
double Percentile(std::vector<double> values, double fraction);

// What Run calls the devices that the ranks call "cpu" or "cuda:1 (NVIDIA H200)": "cpu", "NVIDIA
// H200", several names joined by " + ", each once.
std::string NameDevices(const std::vector<std::string>& devices);

// One Run from the metrics of all workers (by rank) and servers of a job.
//   - A step takes as long as it does on its slowest rank; its parts and its exposed communication
//     are that rank's. Percentiles and medians are over measured steps.
//   - samples_per_s is workers * batch_size over the median step; under ssp and asp, where workers
//     do not wait for each other, the sum of every worker's own rate over its measured steps.
//   - Staleness is that of all workers; the curve and steps_per_s are those of curve.h.
//   - device has each name once, in the order of ranks.
//   - wire_*_max_node is that of the worker or server with the most payload per step.
//   - cpu_ms_per_step adds up all workers (measured steps) and servers (their cpu_seconds over their
//     steps, which are of their whole lives unless the caller replaces them).
// scaling_efficiency, data sizes that workers do not report and everything that describes a bare
// exchange keep zero, busbw_gb_per_s null.
// Errors: DATA_LOSS when metrics are missing or ranks disagree on the job, the number of steps or,
// unless the topology is local, on the parameters.
absl::StatusOr<proto::Run> AggregateRun(const std::vector<proto::WorkerMetrics>& workers,
                                        const std::vector<proto::ServerMetrics>& servers);

// Sets scaling_efficiency of every run and every prediction beside which there is one that differs
// from it only by having one worker (and by its batch size): samples_per_s over workers times the
// one worker's samples_per_s, which is measured for what is measured and predicted for what is
// predicted. Of all others it is 0, whatever it was.
void SetScalingEfficiency(proto::RunRecords* records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_AGGREGATE_H_
