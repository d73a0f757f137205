#include "core/group/watchdog.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/group/group_error.h"
#include "core/group/heartbeat.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Milliseconds(400);
constexpr char kPrefix[] = "run/0/";

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// A watchdog and the heartbeats of three ranks over one store.
class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() {
    WatchdogOptions options;
    options.store = store_;
    options.prefix = kPrefix;
    options.world_size = 3;
    options.failure_timeout = kTimeout;
    watchdog_ = std::make_unique<Watchdog>(options);
    for (int rank = 0; rank < 3; ++rank) {
      activities_.push_back(std::make_shared<Activity>());
      ranks_.push_back(Beat(RankBeatKey(kPrefix, rank), activities_.back()));
    }
  }

  std::unique_ptr<Heartbeat> Beat(const std::string& key, std::shared_ptr<Activity> activity) {
    HeartbeatOptions options;
    options.store = store_;
    options.key = key;
    options.activity = std::move(activity);
    options.failure_timeout = kTimeout;
    options.on_silence = [] { ADD_FAILURE() << "the store is there"; };
    absl::StatusOr<std::unique_ptr<Heartbeat>> heartbeat =
        Heartbeat::Start(std::move(options), Soon());
    EXPECT_TRUE(heartbeat.ok()) << heartbeat.status();
    return *std::move(heartbeat);
  }

  // What the group failed with.
  std::string Failure() {
    const absl::Status status = store_->Get("run/0/failure", Soon()).status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    return std::string(status.message());
  }

  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<std::shared_ptr<Activity>> activities_;
  std::vector<std::unique_ptr<Heartbeat>> ranks_;
};

TEST_F(WatchdogTest, ARankWhoseBeatsEndIsTheGroupsFailure) {
  ranks_[1].reset();
  EXPECT_THAT(Failure(), StartsWith("rank 1 lost: no sign of life for 400ms"));
}

// Long before it has been silent for the failure timeout, which this test makes an hour.
TEST(GoneTest, ARankWhoseConnectionEndsIsLostAtOnceUnlessItHasLeft) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  WatchdogOptions options;
  options.store = store;
  options.prefix = kPrefix;
  options.world_size = 3;
  options.failure_timeout = absl::Hours(1);
  Beat last;
  last.number = 1;
  last.left = true;
  ASSERT_TRUE(store->Set(RankBeatKey(kPrefix, 1), last.ToText(), Soon()).ok());
  for (int rank : {1, 2}) {
    ASSERT_TRUE(store->Set(GoneKey(RankBeatKey(kPrefix, rank)), "", Soon()).ok());
  }
  const Watchdog watchdog(options);
  const absl::Status failure = store->Get("run/0/failure", Soon()).status();
  EXPECT_EQ(failure,
            absl::AbortedError("rank 2 lost: its connection to the store of rank 0 has ended"));
}

TEST_F(WatchdogTest, ARankThatHasLeftIsNotMissed) {
  ranks_[1]->Leave();
  ranks_[1].reset();
  ranks_[2].reset();
  EXPECT_THAT(Failure(), StartsWith("rank 2 lost"));
}

TEST_F(WatchdogTest, ARankThatWorksAndGetsNothingDoneIsStuck) {
  activities_[2]->Prove();
  const Activity::Work stuck(activities_[2].get());
  EXPECT_THAT(Failure(), StartsWith("rank 2 stuck"));
}

// Rank 0, which came to the end of its patience first, was called the one that had failed.
TEST_F(WatchdogTest, WhoIsWaitedForInVainIsStuckInItsFirstStepToo) {
  const Activity::Work first_step(activities_[2].get());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(store_->Get("run/0/failure", Deadline::In(2 * kTimeout)).status()));
  WorkerGroup group;
  group.store = store_;
  group.run_id = "run";
  group.world_size = 3;
  group.failure_timeout = kTimeout;
  const absl::Status said =
      PublishFailure(group, absl::DeadlineExceededError("bucket 3 is not complete"));
  EXPECT_TRUE(absl::IsAborted(said)) << said;
  EXPECT_THAT(std::string(said.message()),
              StartsWith("rank 2 stuck: it is alive and at work, but has done"));
  EXPECT_EQ(Failure(), said.message());
}

TEST_F(WatchdogTest, WhereNobodyIsAtWorkNobodyIsBlamedForAWaitInVain) {
  WorkerGroup group;
  group.store = store_;
  group.run_id = "run";
  group.world_size = 3;
  group.failure_timeout = kTimeout;
  const absl::Status own = absl::DeadlineExceededError("bucket 3 is not complete");
  EXPECT_EQ(PublishFailure(group, own), own);
  EXPECT_EQ(Failure(),
            "nobody is known to have failed, but rank 0 waited in vain: bucket 3 is not complete");
}

TEST_F(WatchdogTest, AServerIsNamedWithItsAddress) {
  for (const char* address : {"h:1", "h:2"}) watchdog_->AddServer(address);
  auto server = Beat(ServerBeatKey(kPrefix, 1), std::make_shared<Activity>());
  server.reset();
  EXPECT_THAT(Failure(), StartsWith("server 1 (h:2) lost"));
}

// A rank cannot say that it is kept away; those who wait would for all of their deadline.
TEST(ObstacleTest, WhatKeepsARankAwayForTheTimeoutIsTheFailureUntilAllHaveCome) {
  for (const bool all_have_come : {false, true}) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    for (int rank = 0; rank < (all_have_come ? 2 : 1); ++rank) {
      Beat beat;
      beat.left = true;  // nobody misses it
      ASSERT_TRUE(store->Set(RankBeatKey(kPrefix, rank), beat.ToText(), Soon()).ok());
    }
    std::atomic<int> asked{0};
    WatchdogOptions options;
    options.store = store;
    options.prefix = kPrefix;
    options.world_size = 2;
    options.failure_timeout = kTimeout;
    options.obstacle = [&] {
      ++asked;
      return "rank 0 is full";
    };
    const Watchdog watchdog(options);
    if (!all_have_come) {
      EXPECT_EQ(store->Get("run/0/key", Soon()).status(), absl::AbortedError("rank 0 is full"));
      EXPECT_GT(asked, 1);
      continue;
    }
    // Asked at the first look at most, before any beat is read.
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(store->Get("run/0/key", Deadline::In(2 * kTimeout)).status()));
    EXPECT_LE(asked, 1);
  }
}

TEST_F(WatchdogTest, WhatFailedBeforeStaysTheFailure) {
  ASSERT_TRUE(store_->Fail(kPrefix, "rank 0 failed first", Soon()).ok());
  ranks_[1].reset();
  const Deadline verdict = Deadline::In(2 * kTimeout);
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->Get("other", verdict).status()));
  EXPECT_EQ(Failure(), "rank 0 failed first");
}

// Takes what is told until Mute(); from then on answers nothing until the deadline.
class MuteStore : public KeyValueStore {
 public:
  void Mute() { mute_ = true; }

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    if (!mute_) return store_->Set(key, value, deadline);
    return store_->Get("nothing", deadline).status();
  }
  absl::StatusOr<std::string> SetIfAbsent(absl::string_view, absl::string_view, Deadline) override {
    return absl::UnavailableError("mute");
  }
  absl::StatusOr<std::string> Get(absl::string_view, Deadline) override {
    return absl::UnavailableError("mute");
  }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view, int, int, absl::string_view,
                                                     Deadline) override {
    return absl::UnavailableError("mute");
  }
  absl::StatusOr<std::string> Fail(absl::string_view, absl::string_view, Deadline) override {
    return absl::UnavailableError("mute");
  }
  std::unique_ptr<Watcher> Watch(absl::string_view,
                                 std::function<void(absl::StatusOr<std::string>)>) override {
    return nullptr;
  }

 private:
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::atomic<bool> mute_{false};
};

TEST(HeartbeatTest, AStoreThatDoesNotAnswerForTheTimeoutIsNoticed) {
  Notification silent;
  HeartbeatOptions options;
  const auto store = std::make_shared<MuteStore>();
  options.store = store;
  options.key = "key";
  options.activity = std::make_shared<Activity>();
  options.failure_timeout = kTimeout;
  options.on_silence = [&] { silent.Notify(); };
  const MonotonicTime start = MonotonicTime::Now();
  absl::StatusOr<std::unique_ptr<Heartbeat>> heartbeat =
      Heartbeat::Start(std::move(options), Soon());
  ASSERT_TRUE(heartbeat.ok()) << heartbeat.status();
  store->Mute();
  silent.WaitForNotification();
  EXPECT_GE(MonotonicTime::Now() - start, kTimeout);
}

}  // namespace
}  // namespace gradsync
