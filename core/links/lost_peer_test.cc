// What happens to a stream when the other process dies or stops.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/links/grpc_stream.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern char** environ;

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// A stream_peer in a process of its own; killed at the end.
class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments) {
    int ends[2];
    if (pipe(ends) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    arguments.insert(arguments.begin(), "core/links/stream_peer");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(&argument[0]);
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    for (char c; read(ends[0], &c, 1) == 1 && c != '\n';) first_line_ += c;
    close(ends[0]);
  }

  ~PeerProcess() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& first_line() const { return first_line_; }
  void Signal(int signal) { kill(pid_, signal); }

 private:
  pid_t pid_ = -1;
  std::string first_line_;
};

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

// By what carries the streams.
class LostPeerTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::shared_ptr<StreamLink> NewLink(absl::Duration stopped_timeout = absl::Seconds(40)) {
    if (GetParam() == "tcp") {
      TcpLinkOptions options;
      options.stopped_timeout = stopped_timeout;
      return NewTcpLink(options);
    }
    GrpcLinkOptions options;
    options.stopped_timeout = stopped_timeout;
    return NewGrpcLink(options);
  }
};

INSTANTIATE_TEST_SUITE_P(, LostPeerTest, ::testing::Values("grpc", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(LostPeerTest, AKilledServerIsNoticedWithinASecondAndNamed) {
  PeerProcess peer({GetParam(), "listen"});
  const std::string address = peer.first_line();
  ASSERT_NE(address, "");
  auto link = NewLink();
  LoanBook book;
  const std::string payload = Pattern(1 << 20, 1);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (int c = 0; c < 2; ++c) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto stream = link->Connect(address, c, sinks.back(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
    for (int i = 0; i < 50; ++i) streams.back()->Send(book.Lend(payload, i));
  }
  ASSERT_TRUE(sinks[0]->AwaitFrames(2));
  peer.Signal(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  for (const auto& sink : sinks) {
    const absl::Status status = sink->AwaitClosed();
    EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(1));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
}

TEST_P(LostPeerTest, AKilledClientIsNoticedWithinASecond) {
  auto link = NewLink();
  Host host;
  auto listener = link->Listen("127.0.0.1:0", host.acceptor());
  ASSERT_TRUE(listener.ok()) << listener.status();
  PeerProcess peer({GetParam(), "connect", (*listener)->address()});
  ASSERT_EQ(peer.first_line(), "connected");
  auto accepted = host.Await(1);
  ASSERT_EQ(accepted.size(), 1u);
  LoanBook book;
  const std::string payload = Pattern(1 << 20, 2);
  for (int i = 0; i < 50; ++i) accepted[0].first->Send(book.Lend(payload, i));
  peer.Signal(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  const absl::Status status = accepted[0].second->AwaitClosed();
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:"));
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
}

TEST_P(LostPeerTest, AStoppedPeerIsNoticedByKeepalive) {
  PeerProcess peer({GetParam(), "listen"});
  const std::string address = peer.first_line();
  ASSERT_NE(address, "");
  auto link = NewLink(/*stopped_timeout=*/absl::Milliseconds(500));
  LoanBook book;
  const std::string payload = Pattern(1 << 20, 3);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (int c = 0; c < 2; ++c) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto stream = link->Connect(address, c, sinks.back(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams.push_back(*stream);
  }
  peer.Signal(SIGSTOP);
  const MonotonicTime stopped = MonotonicTime::Now();
  // One stream is idle; on the other, writes get stuck.
  for (int i = 0; i < 50; ++i) streams[1]->Send(book.Lend(payload, i));
  for (const auto& sink : sinks) {
    const absl::Status status = sink->AwaitClosed();
    EXPECT_LT(MonotonicTime::Now() - stopped, absl::Seconds(5));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
}

TEST_P(LostPeerTest, AListenerDoesNotWaitLongForAStoppedClient) {
  auto link = NewLink();
  Host host;
  auto listener = link->Listen("127.0.0.1:0", host.acceptor());
  ASSERT_TRUE(listener.ok()) << listener.status();
  PeerProcess peer({GetParam(), "connect", (*listener)->address()});
  ASSERT_EQ(peer.first_line(), "connected");
  auto accepted = host.Await(1);
  ASSERT_EQ(accepted.size(), 1u);
  peer.Signal(SIGSTOP);
  LoanBook book;
  const std::string payload = Pattern(1 << 20, 4);
  for (int i = 0; i < 50; ++i) accepted[0].first->Send(book.Lend(payload, i));
  const MonotonicTime start = MonotonicTime::Now();
  listener->reset();
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(5));
  EXPECT_TRUE(accepted[0].second->closed());
  EXPECT_TRUE(book.AwaitAllBack()) << book.back() << " of " << book.out();
}

}  // namespace
}  // namespace gradsync
