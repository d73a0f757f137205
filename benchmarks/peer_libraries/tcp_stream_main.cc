// One process of the TCP ceiling: a ring of bare connections on loopback (two processes: full
// duplex between them). Each process sends to the next as many bytes as a ring-allreduce of that
// size puts on the wire per rank, 2(n-1)/n of it, and receives as many, adding nothing up.
// --variant is the size of a write.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/peer_libraries/peer_rank.h"
#include "benchmarks/ranks/start_line.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int64_t kFitsIntoSocket = 32 << 10;  // bytes that can be sent before anybody receives

absl::Status Errno(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A connection to the next process and one from the previous.
struct Connections {
  int to_next = -1;
  int from_previous = -1;
};

absl::StatusOr<Connections> Connect(const PeerRankOptions& options) {
  GS_ASSIGN_OR_RETURN(const auto line, StartLine::Open(options.start_line, options.world_size));
  const auto port_file = [&](int rank) { return absl::StrCat(options.folder, "/port.", rank); };

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Errno("listening on loopback");
  }
  std::ofstream(port_file(options.rank)) << ntohs(address.sin_port);
  GS_RETURN_IF_ERROR(line->Wait(Deadline::In(options.timeout)));

  uint16_t port = 0;
  std::ifstream(port_file((options.rank + 1) % options.world_size)) >> port;
  Connections connections;
  connections.to_next = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address = Loopback(port);
  if (connect(connections.to_next, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Errno("connecting to the next process");
  }
  connections.from_previous = accept(listener, nullptr, nullptr);
  if (connections.from_previous < 0) return Errno("accepting the previous process");
  close(listener);
  const int on = 1;
  setsockopt(connections.to_next, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return connections;
}

// How much of a stream of `total` bytes is moved next from position `at`: at most `most`, and not
// beyond the end of the buffer, of `size` bytes, which the stream goes round.
int64_t Piece(int64_t at, int64_t total, int64_t size, int64_t most) {
  return std::min({most, total - at, size - at % size});
}

class TcpStream {
 public:
  TcpStream(const Connections& connections, float* input, float* output, int64_t size,
            int64_t total, int64_t write_size)
      : connections_(connections),
        input_(reinterpret_cast<char*>(input)),
        output_(reinterpret_cast<char*>(output)),
        size_(size),
        total_(total),
        write_size_(write_size),
        sender_([this] { SendWhenAsked(); }) {}

  ~TcpStream() {
    Ask(true);
    sender_.join();
  }

  absl::Status Exchange() {
    const bool inline_send = total_ <= kFitsIntoSocket;
    if (inline_send) {
      GS_RETURN_IF_ERROR(Send());
    } else {
      Ask(false);
    }
    GS_RETURN_IF_ERROR(Receive());
    if (inline_send) return absl::OkStatus();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return sent_ == asked_; });
    return send_status_;
  }

 private:
  void Ask(bool end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++asked_;
    end_ = end;
    changed_.notify_all();
  }

  void SendWhenAsked() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return asked_ > sent_; });
      if (end_) return;
      lock.unlock();
      const absl::Status status = Send();
      lock.lock();
      send_status_.Update(status);
      ++sent_;
      changed_.notify_all();
    }
  }

  absl::Status Send() {
    for (int64_t at = 0; at < total_;) {
      const int64_t piece = Piece(at, total_, size_, write_size_);
      const ssize_t n =
          send(connections_.to_next, input_ + at % size_, static_cast<size_t>(piece), MSG_NOSIGNAL);
      if (n <= 0) return Errno("sending");
      at += n;
    }
    return absl::OkStatus();
  }

  absl::Status Receive() {
    for (int64_t at = 0; at < total_;) {
      const int64_t piece = Piece(at, total_, size_, write_size_);
      const ssize_t n =
          recv(connections_.from_previous, output_ + at % size_, static_cast<size_t>(piece), 0);
      if (n < 0) return Errno("receiving");
      if (n == 0) return absl::UnavailableError("the previous process closed its connection");
      at += n;
    }
    return absl::OkStatus();
  }

  const Connections connections_;
  char* const input_;
  char* const output_;
  const int64_t size_;
  const int64_t total_;
  const int64_t write_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t asked_ = 0;
  int64_t sent_ = 0;
  bool end_ = false;
  absl::Status send_status_;
  std::thread sender_;
};

absl::Status RunRank(const PeerRankOptions& options) {
  int64_t write_size = 0;
  if (!absl::SimpleAtoi(options.variant, &write_size) || write_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--variant: expected the size of a write, found \"", options.variant, "\""));
  }
  GS_ASSIGN_OR_RETURN(const Connections connections, Connect(options));
  PeerExchange exchange(options, /*in_place=*/false);
  const int n = options.world_size;
  const int64_t total = 2 * (n - 1) * options.bytes / n;
  TcpStream stream(connections, exchange.input, exchange.output, options.bytes, total, write_size);
  exchange.result = n > 1 ? PeerResult::kPreviousInput : PeerResult::kOwnInput;
  exchange.wire_bytes = static_cast<double>(total);
  exchange.run = [&] { return stream.Exchange(); };
  return MeasurePeer(options, exchange);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::PeerMain("peer_tcp_stream", argc, argv, gradsync::RunRank);
}
