#include "benchmarks/network/tcp_flows.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/deadline.h"
#include "core/base/host_port.h"
#include "core/base/status_macros.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr int64_t kPiece = 256 << 10;  // bytes of a write or a read

absl::Status Errno(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

absl::StatusOr<sockaddr_in> Address(const std::string& text) {
  GS_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(text));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(host_port.port));
  if (inet_pton(AF_INET, host_port.host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("expected an IPv4 address, found ", text));
  }
  return address;
}

// A socket that listens at `host`, and where.
absl::StatusOr<std::pair<int, std::string>> Listen(const std::string& host, int backlog) {
  GS_ASSIGN_OR_RETURN(sockaddr_in address, Address(absl::StrCat(host, ":0")));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t size = sizeof(address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd, backlog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const absl::Status failed = Errno(absl::StrCat("listening at ", host));
    if (fd >= 0) close(fd);
    return failed;
  }
  return std::make_pair(fd, absl::StrCat(host, ":", ntohs(address.sin_port)));
}

absl::Status SendAll(int socket, int64_t bytes) {
  const std::vector<char> piece(kPiece);
  for (int64_t at = 0; at < bytes;) {
    const ssize_t n =
        send(socket, piece.data(), static_cast<size_t>(std::min(kPiece, bytes - at)), MSG_NOSIGNAL);
    if (n <= 0) return Errno("sending");
    at += n;
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int socket, int64_t bytes) {
  std::vector<char> piece(kPiece);
  for (int64_t at = 0; at < bytes;) {
    const ssize_t n =
        recv(socket, piece.data(), static_cast<size_t>(std::min(kPiece, bytes - at)), 0);
    if (n < 0) return Errno("receiving");
    if (n == 0) return absl::UnavailableError("closed its connection");
    at += n;
  }
  return absl::OkStatus();
}

absl::Status Named(int rank, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpFlows>> TcpFlows::Connect(const WorkerGroup& group,
                                                            const TcpFlowBytes& flows) {
  std::map<int, Peer> peers;
  for (const auto& [ends, bytes] : flows) {
    const auto [from, to] = ends;
    if (std::min(from, to) < 0 || std::max(from, to) >= group.world_size || from == to ||
        bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat("expected bytes from one of ",
                                                     group.world_size, " ranks to another, found ",
                                                     bytes, " from ", from, " to ", to));
    }
    if (from == group.rank) peers[to].tx_bytes = bytes;
    if (to == group.rank) peers[from].rx_bytes = bytes;
  }
  std::unique_ptr<TcpFlows> self(new TcpFlows);
  for (auto& [rank, peer] : peers) {
    peer.rank = rank;
    self->peers_.push_back(peer);
    self->tx_bytes_ += peer.tx_bytes;
    self->rx_bytes_ += peer.rx_bytes;
  }
  GS_RETURN_IF_ERROR(self->ConnectPeers(group));
  return self;
}

TcpFlows::~TcpFlows() {
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close(peer.socket);
  }
}

// To higher ranks this one connects, and says who it is; lower ones connect to it.
absl::Status TcpFlows::ConnectPeers(const WorkerGroup& group) {
  using Listener = std::pair<int, std::string>;
  GS_ASSIGN_OR_RETURN(const Listener listener, Listen(group.address, group.world_size));
  const auto close_listener = absl::MakeCleanup([&listener] { close(listener.first); });
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                      group.store->AllGather(group.Key("tcp_flows"), group.rank, group.world_size,
                                             listener.second, Deadline::In(group.timeout)));
  int to_accept = 0;
  for (Peer& peer : peers_) {
    if (peer.rank < group.rank) {
      ++to_accept;
      continue;
    }
    GS_ASSIGN_OR_RETURN(const sockaddr_in address, Address(addresses[peer.rank]));
    peer.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int32_t self = group.rank;
    if (peer.socket < 0 ||
        connect(peer.socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        send(peer.socket, &self, sizeof(self), MSG_NOSIGNAL) != sizeof(self)) {
      return Named(peer.rank, Errno("connecting"));
    }
  }
  for (; to_accept > 0; --to_accept) {
    const int fd = accept4(listener.first, nullptr, nullptr, SOCK_CLOEXEC);
    int32_t rank = -1;
    if (fd < 0 || recv(fd, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank)) {
      return Errno("accepting a lower rank");
    }
    for (Peer& peer : peers_) {
      if (peer.rank == rank) peer.socket = fd;
    }
  }
  const int on = 1;
  for (const Peer& peer : peers_) {
    setsockopt(peer.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return absl::OkStatus();
}

absl::Status TcpFlows::Exchange() {
  std::vector<absl::Status> results(2 * peers_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < peers_.size(); ++i) {
    threads.emplace_back([this, &results, i] {
      results[2 * i] = Named(peers_[i].rank, SendAll(peers_[i].socket, peers_[i].tx_bytes));
    });
    threads.emplace_back([this, &results, i] {
      results[2 * i + 1] = Named(peers_[i].rank, ReceiveAll(peers_[i].socket, peers_[i].rx_bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) GS_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<proto::ExchangeMetrics>> RunTcpFlows(const TcpRunOptions& options) {
  if (options.flows.empty()) return absl::InvalidArgumentError("expected flows, found none");
  LocalJobOptions job;
  proto::RankSpec spec;
  proto::RankSpec::TcpFlows& told = *spec.mutable_tcp_flows();
  told.set_iterations(options.iterations);
  told.set_warmup(options.warmup);
  for (const auto& [ends, bytes] : options.flows) {
    job.workers = std::max({job.workers, ends.first + 1, ends.second + 1});
    proto::RankSpec::TcpFlow& flow = *told.add_flows();
    flow.set_from(ends.first);
    flow.set_to(ends.second);
    flow.set_bytes(bytes);
  }
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(std::move(spec), options.timeout));
  job.worker_binary = options.rank_binary;
  job.worker_flags = {files->flag()};
  job.lab = options.lab;
  job.hosts.resize(job.workers);
  std::iota(job.hosts.begin(), job.hosts.end(), 0);
  job.collect_metrics = true;
  job.start_timeout = options.timeout;
  job.interrupt = options.interrupt;
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(job));
  std::vector<proto::ExchangeMetrics> ranks;
  GS_RETURN_IF_ERROR(ParseMetrics(result.worker_metrics, "host", &ranks));
  return ranks;
}

std::vector<double> ExchangeTimes(const std::vector<proto::ExchangeMetrics>& ranks) {
  std::vector<double> times;
  for (int i = 0; i < ranks[0].begin_us_size(); ++i) {
    double begin = ranks[0].begin_us(i);
    double end = ranks[0].end_us(i);
    for (const proto::ExchangeMetrics& rank : ranks) {
      begin = std::min(begin, rank.begin_us(i));
      end = std::max(end, rank.end_us(i));
    }
    times.push_back(end - begin);
  }
  return times;
}

}  // namespace gradsync
