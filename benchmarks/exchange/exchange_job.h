// One measurement of sync_bench as a job: processes, placed on hosts where there are any, and what
// became of them; and what others take for the same: bare TCP, and nccl-tests' all_reduce_perf.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_JOB_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_JOB_H_

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/network/tcp_flows.h"
#include "proto/run_record.pb.h"

namespace gradsync {

struct ExchangeJobOptions : JobPrograms {  // ranks are //benchmarks:sync_bench_rank
  std::string tcp_rank_binary;             // path of //benchmarks:tcp_flows_rank, for BareTcp
  std::vector<std::string> tls_flags;      // of all processes, for RunTlsBeside()
};

// Blocks until the job has ended; cases with a bandwidth need the network.
// Errors: those of RunMeasuredJob().
absl::StatusOr<proto::Run> RunExchangeJob(const ExchangeJobOptions& options,
                                          const SyncBenchCase& bench_case);

// The same under TLS. The record's link is "tls" over gRPC and "tcp_tls" over TCP; its peer_ratio is the time of `measured` over its
// own. Blocks. Errors: those of RunExchangeJob().
absl::StatusOr<proto::Run> RunTlsBeside(const ExchangeJobOptions& options,
                                        const SyncBenchCase& bench_case,
                                        const proto::Run& measured);

// What bare TCP takes for the bytes of measurements, with the same flows between the same hosts at
// the same time. Not thread-safe.
class BareTcp {
 public:
  // `options` must live longer, and have a network.
  explicit BareTcp(const ExchangeJobOptions& options) : options_(options) {}

  // A Run of the library "tcp_stream", described as `measured` is; its time over that of `measured`
  // becomes the peer_ratio of `measured`. Blocks; the same flows are measured once at a bandwidth.
  // Errors: NOT_FOUND when nothing crosses any link; those of RunTcpFlows().
  absl::StatusOr<proto::Run> MeasureBeside(const SyncBenchCase& bench_case, proto::Run* measured);

 private:
  const ExchangeJobOptions& options_;
  // What hosts measured, by bandwidth and flows.
  std::map<std::pair<std::string, TcpFlowBytes>, std::vector<proto::ExchangeMetrics>> known_;
};

// What all_reduce_perf printed for one size: the only line of it that is no comment has size,
// count, type, operation and root, then time (the mean over iterations, each until the GPU is
// done), algbw, busbw and wrong elements, out of place and in place, which is taken. Has versions
// where it says them. Errors: DATA_LOSS saying what was expected and found; also where it did not
// verify. Thread-safe.
absl::StatusOr<proto::Run> ParseNcclTests(absl::string_view output);

// Whether it does what this case does: one all-reduce over NCCL between the GPUs 0, 1, ...
bool ComparesWithNcclTests(const SyncBenchCase& bench_case);

// Runs it. A Run of the library "nccl_tests"; its time over that of `measured` becomes the
// peer_ratio of `measured`. Blocks for at most the case's timeout, and until `interrupt` is not 0.
// Errors: NOT_FOUND saying how to get it when the program is not there; those of RunProgram() and
// ParseNcclTests().
absl::StatusOr<proto::Run> MeasureNcclTests(const std::string& program,
                                            const SyncBenchCase& bench_case,
                                            const std::atomic<int>* interrupt,
                                            proto::Run* measured);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_EXCHANGE_JOB_H_
