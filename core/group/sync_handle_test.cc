#include "core/group/sync_handle.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

TEST(SyncHandleTest, EveryWaitDoesWhatRemains) {
  int calls = 0;
  absl::Status later;
  const SyncPromise promise("it");
  promise.Resolve(absl::OkStatus(), [&] {
    ++calls;
    return later;
  });
  EXPECT_TRUE(promise.handle().done());
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(promise.handle().Wait(Soon()), absl::OkStatus());
  later = absl::DataLossError("lost later");
  EXPECT_EQ(promise.handle().Wait(Soon()), later);
  EXPECT_EQ(calls, 2);
}

TEST(SyncHandleTest, NothingRemainsOfAFailure) {
  int calls = 0;
  const SyncPromise promise("it");
  promise.Resolve(absl::DataLossError("lost"), [&] {
    ++calls;
    return absl::OkStatus();
  });
  EXPECT_EQ(promise.handle().Wait(Soon()), absl::DataLossError("lost"));
  EXPECT_EQ(calls, 0);
}

TEST(SyncHandleTest, ASeriesForgetsWhatRemainedOfAnOlderStep) {
  const auto kept = std::make_shared<int>(0);
  SyncPromiseSeries series("it");
  series.Begin(1).Resolve(absl::OkStatus(), [kept] { return absl::DataLossError("old"); });
  series.Begin(2).Resolve(absl::OkStatus());
  EXPECT_EQ(series.current().handle().Wait(Soon()), absl::OkStatus());
  EXPECT_FALSE(series.Begin(3).handle().done());
  EXPECT_EQ(kept.use_count(), 1);
  series.current().Resolve(absl::OkStatus());
  EXPECT_EQ(series.current().handle().Wait(Soon()), absl::OkStatus());
}

TEST(SyncHandleTest, TheTimeOfWhatIsResolvedIsKeptWhereAsked) {
  const MonotonicTime before = MonotonicTime::Now();
  SyncPromiseSeries series("it");
  for (const bool resolved_first : {false, true}) {
    const SyncPromise& promise = series.Begin(1);
    if (resolved_first) promise.Resolve(absl::OkStatus());
    promise.handle().KeepTime();
    promise.Resolve(absl::OkStatus());
    EXPECT_GE(promise.handle().resolved_at(), before);
    EXPECT_LE(promise.handle().resolved_at(), MonotonicTime::Now());
  }
}

TEST(SyncHandleTest, WhatSucceededAtOnceIsDoneAndNothingElse) {
  const SyncHandle handle = ResolvedHandle(absl::OkStatus());
  EXPECT_TRUE(handle.done());
  EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
  EXPECT_EQ(SyncHandle(handle).Wait(Deadline::In(absl::ZeroDuration())), absl::OkStatus());
}

// A success takes no lock unless somebody sleeps, so whoever comes first must be seen by all.
TEST(SyncHandleTest, AllWhoWaitSeeTheOneOutcomeOfARace) {
  SyncPromiseSeries series("it");
  int failures = 0;
  for (int64_t step = 1; step <= 2000; ++step) {
    const SyncPromise& promise = series.Begin(step);
    std::vector<absl::Status> seen(2);
    std::vector<std::thread> threads;
    for (absl::Status& status : seen) {
      threads.emplace_back([&status, handle = promise.handle()] { status = handle.Wait(Soon()); });
    }
    threads.emplace_back([&] { promise.Resolve(absl::DataLossError("lost")); });
    promise.Resolve(absl::OkStatus());
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(seen[0], seen[1]);
    EXPECT_EQ(promise.handle().Wait(Soon()), seen[0]);
    failures += seen[0].ok() ? 0 : 1;
  }
  EXPECT_LT(failures, 2000);
}

TEST(SyncHandleTest, AWaitThatLastsIsNoticedWhileItLasts) {
  const SyncPromise promise("it");
  int notices = 0;
  StallNotice stall;
  stall.after = absl::Milliseconds(1);
  stall.say = [&](absl::Duration waited) {
    EXPECT_GE(waited, stall.after);
    EXPECT_FALSE(promise.handle().done());
    ++notices;
    promise.Resolve(absl::OkStatus());
  };
  EXPECT_EQ(promise.handle().Wait(Soon(), stall), absl::OkStatus());
  EXPECT_EQ(notices, 1);
  EXPECT_EQ(promise.handle().Wait(Soon(), stall), absl::OkStatus());
  EXPECT_EQ(notices, 1);
}

}  // namespace
}  // namespace gradsync
