// Bytes over bare TCP, with the flow pattern of an exchange: what the network gives when nothing is
// computed, ordered or waited for. The ceiling beside which exchanges on emulated networks stand.

#ifndef GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_
#define GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/group/worker_group.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"

namespace gradsync {

// Payload of an exchange, from the first to the second rank of each pair.
using TcpFlowBytes = std::map<std::pair<int, int>, int64_t>;

// One rank's end of all its flows. Every two ranks with flows between them have one connection,
// which carries both directions. Not thread-safe.
class TcpFlows {
 public:
  // Collective: listens at group.address, connects to the other ranks. Blocks until all connections
  // stand, at most for group.timeout. Errors: INVALID_ARGUMENT for a rank that is not in the group,
  // a flow from a rank to itself, or less than no bytes; those of the store; the errno's code
  // naming the rank.
  static absl::StatusOr<std::unique_ptr<TcpFlows>> Connect(const WorkerGroup& group,
                                                           const TcpFlowBytes& flows);
  ~TcpFlows();

  TcpFlows(const TcpFlows&) = delete;
  TcpFlows& operator=(const TcpFlows&) = delete;

  // Sends and receives all bytes of this rank's flows, all at once, and blocks until they have been
  // handed to the kernel and have come. What comes is dropped.
  // Errors: UNAVAILABLE when a rank closed its connection; the errno's code, naming the rank.
  absl::Status Exchange();

  int64_t tx_bytes() const { return tx_bytes_; }  // per exchange
  int64_t rx_bytes() const { return rx_bytes_; }

 private:
  struct Peer {
    int rank = 0;
    int socket = -1;
    int64_t tx_bytes = 0;
    int64_t rx_bytes = 0;
  };

  TcpFlows() = default;
  absl::Status ConnectPeers(const WorkerGroup& group);

  std::vector<Peer> peers_;
  int64_t tx_bytes_ = 0;
  int64_t rx_bytes_ = 0;
};

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

#endif  // GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_
