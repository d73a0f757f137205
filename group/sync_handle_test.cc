#include "group/sync_handle.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"
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

}  // namespace
}  // namespace gradsync
