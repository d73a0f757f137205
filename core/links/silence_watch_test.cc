#include "core/links/silence_watch.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(400);

// Connections as the test says they are, and how often they were looked at.
class Kernel {
 public:
  SilenceWatch::Look Looker() {
    return [this] {
      MutexLock lock(&mutex_);
      ++looks_;
      changed_.SignalAll();
      return connections_;
    };
  }

  SilenceWatch::Shut Shutter() {
    return [this](uint64_t id) {
      MutexLock lock(&mutex_);
      shut_.push_back(id);
      changed_.SignalAll();
    };
  }

  // The first so many that were shut.
  std::vector<uint64_t> AwaitShut(size_t count) {
    MutexLock lock(&mutex_);
    while (shut_.size() < count) changed_.Wait(&mutex_);
    return shut_;
  }

  void Say(std::vector<TcpConnection> connections) {
    MutexLock lock(&mutex_);
    connections_ = std::move(connections);
  }

  void AwaitLooks(int count) {
    MutexLock lock(&mutex_);
    for (const int end = looks_ + count; looks_ < end;) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> shut_ ABSL_GUARDED_BY(mutex_);
  std::vector<TcpConnection> connections_ ABSL_GUARDED_BY(mutex_);
};

class Stream : public SilenceWatch::Watched {
 public:
  void OnSilence(absl::Status why) override {
    MutexLock lock(&mutex_);
    ended_ = MonotonicTime::Now();
    why_ = std::move(why);
    changed_.SignalAll();
  }

  absl::Status Await() {
    MutexLock lock(&mutex_);
    while (why_.ok()) changed_.Wait(&mutex_);
    return why_;
  }

  absl::Status why() {
    MutexLock lock(&mutex_);
    return why_;
  }

  MonotonicTime ended() {
    MutexLock lock(&mutex_);
    return ended_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  MonotonicTime ended_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::InfinitePast();
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

TcpConnection Connection(uint64_t id, std::string remote, int64_t unacked,
                         absl::Duration since_ack) {
  TcpConnection connection;
  connection.id = id;
  connection.remote = std::move(remote);
  connection.unacked = unacked;
  connection.since_ack = since_ack;
  return connection;
}

TEST(SilenceWatchTest, AConnectionOnWhichNothingIsAcknowledgedEndsItsStreams) {
  Kernel kernel;
  // One that was idle for long has just got something to send.
  kernel.Say({Connection(1, "10.0.0.7:4000", 8, absl::Seconds(100)),
              Connection(2, "10.0.0.8:4000", 0, absl::Seconds(100)),
              Connection(3, "10.0.0.7:4000", 0, absl::Seconds(100))});
  SilenceWatch watch(kTimeout, kernel.Looker(), kernel.Shutter());
  auto cut = std::make_shared<Stream>(), same = std::make_shared<Stream>(),
       other = std::make_shared<Stream>();
  const MonotonicTime start = MonotonicTime::Now();
  watch.Add("ipv4:10.0.0.7:4000", cut);
  watch.Add("ipv4:10.0.0.7:4000", same);
  watch.Add("ipv4:10.0.0.8:4000", other);
  const absl::Status why = cut->Await();
  EXPECT_GE(cut->ended() - start, SilenceFor(kTimeout).limit);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PatienceWith(why), SilenceFor(kTimeout).patience);
  EXPECT_FALSE(same->Await().ok());
  EXPECT_THAT(kernel.AwaitShut(2), testing::ElementsAre(1, 3));
  EXPECT_TRUE(other->why().ok());
}

TEST(SilenceWatchTest, AcknowledgementsKeepAConnectionOnWhichThereIsAlwaysMore) {
  Kernel kernel;
  kernel.Say({Connection(1, "[fe80::1]:4000", 1 << 20, absl::Milliseconds(1))});
  SilenceWatch watch(kTimeout, kernel.Looker(), kernel.Shutter());
  auto busy = std::make_shared<Stream>();
  watch.Add("ipv6:%5Bfe80::1%5D:4000", busy);
  kernel.AwaitLooks(60);  // 1.5 failure timeouts
  EXPECT_TRUE(busy->why().ok()) << busy->why();
  kernel.Say({Connection(1, "[fe80::1]:4000", 1 << 20, absl::Seconds(1))});
  EXPECT_FALSE(busy->Await().ok());
}

TEST(SilenceWatchTest, AnotherConnectionToTheSamePeerBeginsAnew) {
  Kernel kernel;
  SilenceWatch watch(kTimeout, kernel.Looker(), kernel.Shutter());
  auto stream = std::make_shared<Stream>();
  watch.Add("ipv4:10.0.0.7:4000", stream);
  for (uint64_t id = 1; id < 7; ++id) {
    kernel.Say({Connection(id, "10.0.0.7:4000", 8, absl::Seconds(100))});
    kernel.AwaitLooks(10);
  }
  EXPECT_TRUE(stream->why().ok()) << stream->why();
}

TEST(SilenceWatchTest, PeersOnThisHostAreNotWatched) {
  EXPECT_EQ(RemoteOfPeer("ipv4:127.0.0.1:4000"), "");
  EXPECT_EQ(RemoteOfPeer("ipv6:%5B::1%5D:4000"), "");
  EXPECT_EQ(RemoteOfPeer("unix:/tmp/socket"), "");
  EXPECT_EQ(RemoteOfPeer("ipv4:10.0.0.7:4000"), "10.0.0.7:4000");
  EXPECT_EQ(RemoteOfPeer("ipv6:%5Bfe80::1%5D:4000"), "[fe80::1]:4000");
}

}  // namespace
}  // namespace gradsync
