#ifndef GRADSYNC_BENCHMARKS_NETWORK_TCP_RUN_H_
#define GRADSYNC_BENCHMARKS_NETWORK_TCP_RUN_H_

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/network/tcp_flows.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"

namespace gradsync {

// An exchange over bare TCP, a process on each host of a lab.
struct TcpRunOptions {
  const NetworkLab* lab = nullptr;  // not owned
  std::string rank_binary;          // path of //benchmarks:tcp_flows_rank
  TcpFlowBytes flows;               // by host; hosts 0 to the largest take part
  int iterations = 3;
  int warmup = 1;
  absl::Duration timeout = absl::Seconds(60);
  const std::atomic<int>* interrupt = nullptr;  // as LocalJobOptions has it
};

// Blocks until it is measured; what the hosts counted, by host.
// Errors: INVALID_ARGUMENT without flows; CANCELLED when interrupted; ABORTED saying what failed.
absl::StatusOr<std::vector<proto::ExchangeMetrics>> RunTcpFlows(const TcpRunOptions& options);

// Microseconds from the first begin to the last end over the ranks, for each iteration; all ranks
// have as many.
std::vector<double> ExchangeTimes(const std::vector<proto::ExchangeMetrics>& ranks);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_TCP_RUN_H_
