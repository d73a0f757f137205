// How fast frames go between two processes over loopback, in both directions at once.
//
//   bazel run //core/links:stream_bench
//   bazel run //core/links:stream_bench -- --link=tcp --connections=2 --bytes=262144 --megabytes=4000
//
// One line per number of connections and size of message: GB/s of payload in each direction (1 GB =
// 1e9 bytes; both directions run at once, so the machine moves twice that), messages per second,
// and how many messages arrived wrong. Nothing is done with what arrives but a look at its ends:
// this is the bare stream, the upper limit of what a ring or a parameter server can reach.
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/links/grpc_stream.h"
#include "core/links/tcp_stream.h"

ABSL_FLAG(std::vector<std::string>, connections, std::vector<std::string>({"1", "2", "4"}),
          "parallel connections");
ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"65536", "262144", "1048576", "4194304"}),
          "sizes of a message");
ABSL_FLAG(std::string, link, "grpc", "what carries the streams: grpc or tcp");
ABSL_FLAG(int, megabytes, 2000, "how much to send in each direction, over all connections");
ABSL_FLAG(int, repeat, 3, "times that each line is measured; the median is printed");
ABSL_FLAG(bool, serve, false, "be the other process (used by the benchmark itself)");

extern char** environ;

namespace gradsync {
namespace {

// Both ends send the same: `count` messages from one buffer, whose first and last byte are known.
constexpr char kFirst = 'a', kLast = 'z';

void SendAll(FrameStream& stream, const std::shared_ptr<std::string>& buffer, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::PUSH);
    frame.header.set_slot(i);
    frame.payload = absl::MakeConstSpan(buffer->data(), buffer->size());
    frame.released = [buffer] {};
    stream.Send(std::move(frame));
  }
  stream.Finish();
}

std::shared_ptr<std::string> NewBuffer(size_t bytes) {
  auto buffer = std::make_shared<std::string>(bytes, 'x');
  buffer->front() = kFirst;
  buffer->back() = kLast;
  return buffer;
}

// Counts what comes in. At the accepting end, the first frame says what to send back.
class BenchSink : public FrameSink {
 public:
  explicit BenchSink(std::shared_ptr<FrameStream> answering = nullptr)
      : answering_(std::move(answering)) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    if (header.kind() == proto::FrameHeader::HELLO) {
      bytes_ = header.slot();
      SendAll(*answering_, NewBuffer(bytes_), header.count());
      return;
    }
    const bool right = header.slot() == next_++ && payload.size() == bytes_ &&
                       payload.parts.front().front() == kFirst &&
                       payload.parts.back().back() == kLast;
    if (!right) ++wrong_;
  }

  void OnClosed(absl::Status status) override {
    answering_.reset();
    MutexLock lock(&mutex_);
    status_ = std::move(status);
    closed_ = true;
    changed_.SignalAll();
  }

  void Expect(size_t bytes) { bytes_ = bytes; }

  // Waits for the end; the number of messages that are missing or wrong.
  uint32_t AwaitEnd(uint32_t expected) {
    MutexLock lock(&mutex_);
    while (!closed_) changed_.Wait(&mutex_);
    if (!status_.ok()) std::cerr << status_ << std::endl;
    return wrong_ + (next_ < expected ? expected - next_ : 0) + (status_.ok() ? 0 : 1);
  }

 private:
  std::shared_ptr<FrameStream> answering_;
  size_t bytes_ = 0;
  uint32_t next_ = 0;
  uint32_t wrong_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

std::shared_ptr<StreamLink> NewLink() {
  return absl::GetFlag(FLAGS_link) == "tcp" ? NewTcpLink() : NewGrpcLink();
}

int Serve() {
  auto link = NewLink();
  auto listener = link->Listen("127.0.0.1:0", [](std::shared_ptr<FrameStream> stream) {
    return std::make_shared<BenchSink>(std::move(stream));
  });
  if (!listener.ok()) {
    std::cerr << listener.status() << std::endl;
    return 1;
  }
  std::cout << (*listener)->address() << std::endl;
  char end;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  return 0;
}

struct Measured {
  double seconds = 0;
  uint32_t wrong = 0;
};

absl::StatusOr<Measured> Measure(StreamLink& link, const std::string& address, int connections,
                                 size_t bytes, uint32_t count) {
  std::vector<std::shared_ptr<BenchSink>> sinks;
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (int c = 0; c < connections; ++c) {
    sinks.push_back(std::make_shared<BenchSink>());
    sinks.back()->Expect(bytes);
    auto stream = link.Connect(address, c, sinks.back(), Deadline::In(absl::Seconds(10)));
    if (!stream.ok()) return stream.status();
    streams.push_back(*std::move(stream));
  }
  const auto buffer = NewBuffer(bytes);
  const MonotonicTime start = MonotonicTime::Now();
  for (const auto& stream : streams) {
    OutgoingFrame hello;
    hello.header.set_kind(proto::FrameHeader::HELLO);
    hello.header.set_slot(bytes);
    hello.header.set_count(count);
    stream->Send(std::move(hello));
  }
  for (const auto& stream : streams) SendAll(*stream, buffer, count);
  Measured measured;
  for (const auto& sink : sinks) measured.wrong += sink->AwaitEnd(count);
  measured.seconds = absl::ToDoubleSeconds(MonotonicTime::Now() - start);
  return measured;
}

// Runs this program again as the server. Its standard input is a pipe that ends with us.
absl::StatusOr<std::string> StartServer() {
  int to_server[2], from_server[2];
  if (pipe2(to_server, O_CLOEXEC) != 0 || pipe2(from_server, O_CLOEXEC) != 0) {
    return absl::InternalError("pipe2 failed");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_server[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_server[1], STDOUT_FILENO);
  std::string program = "stream_bench", flag = "--serve",
              link = "--link=" + absl::GetFlag(FLAGS_link);
  char* argv[] = {&program[0], &flag[0], &link[0], nullptr};
  pid_t pid;
  const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return absl::InternalError("cannot start the second process");
  close(from_server[1]);
  std::string address;
  for (char c; read(from_server[0], &c, 1) == 1 && c != '\n';) address += c;
  if (address.empty()) return absl::InternalError("the second process gave no address");
  return address;
}

absl::StatusOr<bool> Line(StreamLink& link, const std::string& address, int connections,
                          size_t bytes) {
  const size_t total = static_cast<size_t>(absl::GetFlag(FLAGS_megabytes)) * 1000000;
  const uint32_t count = std::max<size_t>(1, total / bytes / connections);
  std::vector<double> seconds;
  uint32_t wrong = 0;
  for (int i = 0; i < std::max(1, absl::GetFlag(FLAGS_repeat)); ++i) {
    absl::StatusOr<Measured> measured = Measure(link, address, connections, bytes, count);
    if (!measured.ok()) return measured.status();
    seconds.push_back(measured->seconds);
    wrong += measured->wrong;
  }
  std::sort(seconds.begin(), seconds.end());
  const double messages_per_s =
      static_cast<double>(count) * connections / seconds[seconds.size() / 2];
  std::printf("%11d %10zu %10.2f %12.0f %7u\n", connections, bytes, messages_per_s * bytes / 1e9,
              messages_per_s, wrong);
  std::fflush(stdout);
  return wrong == 0;
}

int Run() {
#ifndef NDEBUG
  std::cerr << "WARNING: not an optimised build" << std::endl;
#endif
  if (absl::GetFlag(FLAGS_link) != "grpc" && absl::GetFlag(FLAGS_link) != "tcp") {
    std::cerr << FlagError("link", "grpc or tcp", absl::GetFlag(FLAGS_link)).message() << std::endl;
    return 2;
  }
  absl::StatusOr<std::string> address = StartServer();
  if (!address.ok()) {
    std::cerr << address.status() << std::endl;
    return 1;
  }
  auto link = NewLink();
  bool right = true;
  std::printf("# %u cores\n%11s %10s %10s %12s %7s\n", std::thread::hardware_concurrency(),
              "connections", "bytes", "GB/s", "messages/s", "#wrong");
  for (const std::string& connections : absl::GetFlag(FLAGS_connections)) {
    for (const std::string& bytes : absl::GetFlag(FLAGS_bytes)) {
      int c;
      uint32_t b;
      if (!absl::SimpleAtoi(connections, &c) || c < 1 || !absl::SimpleAtoi(bytes, &b) || b < 2) {
        std::cerr << "--connections=" << connections << " --bytes=" << bytes
                  << ": expected numbers of at least 1 and 2" << std::endl;
        return 2;
      }
      absl::StatusOr<bool> line = Line(*link, *address, c, b);
      if (!line.ok()) {
        std::cerr << line.status() << std::endl;
        return 1;
      }
      right = right && *line;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures streams of frames between two processes over loopback.");
  absl::ParseCommandLine(argc, argv);
  return absl::GetFlag(FLAGS_serve) ? gradsync::Serve() : gradsync::Run();
}
