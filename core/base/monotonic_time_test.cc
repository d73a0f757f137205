#include "core/base/monotonic_time.h"

#include <time.h>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(MonotonicTimeTest, PointsDifferByDurations) {
  const MonotonicTime begin;
  const MonotonicTime end = begin + absl::Seconds(3);
  EXPECT_EQ(end - begin, absl::Seconds(3));
  EXPECT_EQ(begin - end, -absl::Seconds(3));
  EXPECT_EQ(end - absl::Seconds(3), begin);
  MonotonicTime moved = begin;
  moved += absl::Seconds(4);
  moved -= absl::Seconds(1);
  EXPECT_EQ(moved, end);
  EXPECT_EQ(moved.since_origin(), absl::Seconds(3));
}

TEST(MonotonicTimeTest, LaterIsMore) {
  const MonotonicTime now = MonotonicTime::Now();
  const MonotonicTime later = now + absl::Nanoseconds(1);
  EXPECT_TRUE(now < later && now <= later && later > now && later >= now && now != later);
  EXPECT_TRUE(now <= now && now >= now && now == now && !(now < now) && !(now > now));
}

TEST(MonotonicTimeTest, TheInfiniteOnesStayBeforeAndAfterAllOthers) {
  const MonotonicTime now = MonotonicTime::Now();
  EXPECT_LT(MonotonicTime::InfinitePast(), now);
  EXPECT_LT(now, MonotonicTime::InfiniteFuture());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() + absl::Hours(1), MonotonicTime::InfiniteFuture());
  EXPECT_EQ(MonotonicTime::InfiniteFuture() - now, absl::InfiniteDuration());
  EXPECT_EQ(now - MonotonicTime::InfinitePast(), absl::InfiniteDuration());
}

// benchmarks/ compares the times of several processes, and pytorch_train.py reads this clock too.
TEST(MonotonicTimeTest, ItIsTheClockThatProcessesOfAHostShare) {
  const auto system = [] {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  };
  const absl::Duration before = system();
  const MonotonicTime now = MonotonicTime::Now();
  const absl::Duration after = system();
  EXPECT_LE(before, now.since_origin());
  EXPECT_LE(now.since_origin(), after);
}

}  // namespace
}  // namespace gradsync
