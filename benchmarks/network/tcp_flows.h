// Bytes over bare TCP, with the flow pattern of an exchange: what the network gives when nothing is
// computed, ordered or waited for. The ceiling beside which exchanges on emulated networks stand.

#ifndef GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_
#define GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "group/worker_group.h"

namespace gradsync {

// Payload from one rank to another in an exchange.
struct TcpFlow {
  int from = 0;
  int to = 0;
  int64_t bytes = 0;
};

// "0:1:4096,1:0:4096" and back.
std::string FormatTcpFlows(const std::vector<TcpFlow>& flows);

// Errors: INVALID_ARGUMENT saying what was expected and found: no such text, ranks outside 0 to
// ranks-1, a flow from a rank to itself, or twice the same pair.
absl::StatusOr<std::vector<TcpFlow>> ParseTcpFlows(absl::string_view text, int ranks);

// One rank's end of all its flows. Every two ranks with flows between them have one connection,
// which carries both directions. Not thread-safe.
class TcpFlows {
 public:
  // Collective: listens at group.address, connects to the other ranks. Blocks until all connections
  // stand, at most for group.timeout. Errors: those of the store; the errno's code naming the rank.
  static absl::StatusOr<std::unique_ptr<TcpFlows>> Connect(const WorkerGroup& group,
                                                           const std::vector<TcpFlow>& flows);
  ~TcpFlows();

  TcpFlows(const TcpFlows&) = delete;
  TcpFlows& operator=(const TcpFlows&) = delete;

  // Sends and receives all bytes of this rank's flows, all at once, and blocks until they have been
  // handed to the kernel and have come. What comes is dropped.
  // Errors: UNAVAILABLE when a rank closed its connection; the errno's code, naming the rank.
  absl::Status Exchange();

  int64_t tx_bytes() const;  // per exchange
  int64_t rx_bytes() const;

 private:
  struct Peer {
    int rank = 0;
    int socket = -1;
    int64_t tx_bytes = 0;
    int64_t rx_bytes = 0;
  };

  explicit TcpFlows(std::vector<Peer> peers) : peers_(std::move(peers)) {}
  absl::Status ConnectPeers(const WorkerGroup& group);

  std::vector<Peer> peers_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_TCP_FLOWS_H_
