// Rank = process: what the others notice when one is killed or stopped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/group/grpc_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// A process that runs `body`, which gets the writing end of a pipe. gRPC's threads do not survive a
// fork, so all children are made before this process uses gRPC.
class Child {
 public:
  explicit Child(const std::function<void(int fd)>& body) {
    int fds[2];
    if (pipe(fds) != 0) _exit(1);
    pid_ = fork();
    if (pid_ == 0) {
      close(fds[0]);
      body(fds[1]);
      _exit(0);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~Child() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(fd_);
  }
  void Signal(int signal) { kill(pid_, signal); }

  int ReadInt() {
    int value = 0;
    return read(fd_, &value, sizeof(value)) == sizeof(value) ? value : 0;
  }

 private:
  pid_t pid_ = 0;
  int fd_ = -1;
};

void WriteInt(int fd, int value) {
  if (write(fd, &value, sizeof(value)) != sizeof(value)) _exit(1);
}

void Serve(int fd) {
  const auto server = GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials()).value();
  WriteInt(fd, server->port());
  pause();
}

TEST(GrpcStoreKillTest, AKilledRankLeavesItsExchangeAndAKilledServerFailsAllThatWaits) {
  int ports[2];
  ASSERT_EQ(pipe(ports), 0);
  Child server(Serve);
  // Rank 1 of an exchange of three, which waits until it is killed.
  Child client([&](int fd) {
    int port = 0;
    if (read(ports[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
    const auto store =
        ConnectStore(absl::StrCat("127.0.0.1:", port), InsecureCredentials(), Soon()).value();
    const auto presence = store->Attend("client is gone");
    std::thread exchange([&] { store->AllGather("key", 1, 3, "", Soon()).status().IgnoreError(); });
    WriteInt(fd, 1);
    exchange.join();
  });
  const int port = server.ReadInt();
  ASSERT_NE(port, 0);
  WriteInt(ports[1], port);
  ASSERT_EQ(client.ReadInt(), 1);
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const auto store = ConnectStore(address, InsecureCredentials(), Soon()).value();

  const auto missing = [&] {
    const absl::Status status =
        store->AllGather("key", 0, 3, "", Deadline::In(absl::Milliseconds(20))).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    return std::string(status.message());
  };
  std::string message;
  do {
    message = missing();
  } while (message.find("rank 2 of 3") == message.npos);
  EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get("client is gone", Deadline::Now()).status()));
  client.Signal(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  do {
    message = missing();
  } while (message.find("ranks 1, 2 of 3") == message.npos &&
           MonotonicTime::Now() < killed + absl::Seconds(10));
  EXPECT_TRUE(store->Get("client is gone", Soon()).ok());
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(5));

  Mutex mutex;
  CondVar changed;
  std::vector<absl::Status> ended;
  const auto end = [&](absl::Status status) {
    MutexLock lock(&mutex);
    ended.push_back(std::move(status));
    changed.SignalAll();
  };
  std::thread get([&] { end(store->Get("never", Soon()).status()); });
  std::thread exchange([&] { end(store->AllGather("never", 0, 2, "", Soon()).status()); });
  const auto watcher =
      store->Watch("never", [&](absl::StatusOr<std::string> value) { end(value.status()); });
  ASSERT_TRUE(store->Set("key", "value", Soon()).ok());
  const MonotonicTime start = MonotonicTime::Now();
  server.Signal(SIGKILL);
  get.join();
  exchange.join();
  {
    MutexLock lock(&mutex);
    while (ended.size() < 3) changed.Wait(&mutex);
  }
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(5));
  for (const absl::Status& status : ended) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace gradsync
