// From what the processes of a measurement counted to a record and a line of the table.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_REPORT_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "core/plan/wire_traffic.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What a measurement puts on the wire in one exchange, by core/plan/wire_traffic.h. Thread-safe.
// Errors: those of ExchangePlan() and ShardMap::Create().
absl::StatusOr<std::vector<Flow>> ExchangeFlows(const SyncBenchCase& bench_case);

// One Run from the metrics of all ranks and servers.
//   - An iteration takes from its first begin to its last end over the ranks.
//   - algbw is bytes over the median time; busbw that times AllReduceBusFactor(), null for ps.
//   - wire_*_max_node is the most that one host sent, or received, per iteration, where hosts are
//     emulated (what its processes send each other is no wire's); otherwise one process.
//   - model_us is ExchangeSeconds() for exact bytes, when a bandwidth was given; 0 otherwise.
//   - simulated_us is what the simulator says of the same chunks and connections (simulate.h), for
//     gRPC between emulated hosts; 0 otherwise.
//   - cpu_share is rank 0's view of the whole machine; on emulated hosts `invalid` says so when it
//     is too large.
//   - cpu_ms_per_step adds up ranks (exchanges alone) and servers (their whole life, over all of
//     their steps, so start and end weigh on few iterations).
// Errors: DATA_LOSS when metrics are missing or ranks disagree.
absl::StatusOr<proto::Run> SummarizeExchanges(const SyncBenchCase& bench_case,
                                              const std::vector<proto::ExchangeMetrics>& ranks,
                                              const std::vector<proto::ServerMetrics>& servers);

// Of a run that has bytes and its job: sets time_us_*, rates, cpu_share and `invalid` as above.
void SetTimes(const std::vector<proto::ExchangeMetrics>& ranks, proto::Run* run);

// Of a run that has bytes and a median time: sets algbw_gb_per_s, and busbw_gb_per_s as above.
void SetBusBandwidth(proto::Run* run);

// Puts `peer`, which did the same, beside `measured`: its time over ours is our ratio to it.
void AddPeerRatio(const proto::Run& peer, proto::Run* measured);

// The head of the table, two lines, and the line of one run; all end in a newline. Numbers are
// right-aligned; "-" stands where there is none. A run on GPUs has a second line that says on
// which, and over NCCL what NCCL chose; one that is invalid, a line that says why.
std::string SyncBenchHead();
std::string SyncBenchLine(const proto::Run& run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_SYNC_BENCH_REPORT_H_
