#include "core/base/deadline.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(DeadlineTest, WhatRemainsIsAtMostThePatience) {
  const Deadline deadline = Deadline::In(absl::Hours(1));
  EXPECT_FALSE(deadline.passed());
  EXPECT_FALSE(deadline.never());
  const absl::Duration remaining = deadline.remaining();
  EXPECT_LE(remaining, absl::Hours(1));
  EXPECT_GT(remaining, absl::Minutes(59));
  EXPECT_LE(deadline.remaining(), remaining);
}

TEST(DeadlineTest, OneThatHasPassedLeavesNothingAndNeverLess) {
  for (const Deadline deadline :
       {Deadline::Now(), Deadline::In(absl::ZeroDuration()), Deadline::In(-absl::Hours(1)),
        Deadline::In(-absl::InfiniteDuration()), Deadline::At(MonotonicTime()),
        Deadline::At(MonotonicTime::InfinitePast())}) {
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.remaining(), absl::ZeroDuration());
    EXPECT_EQ(deadline.PollTimeout(), 0);
  }
}

TEST(DeadlineTest, NeverStaysNever) {
  for (const Deadline deadline :
       {Deadline::Never(), Deadline::In(absl::InfiniteDuration()),
        Deadline::Never() + absl::Seconds(1), Deadline::Now() + absl::InfiniteDuration()}) {
    EXPECT_TRUE(deadline.never());
    EXPECT_FALSE(deadline.passed());
    EXPECT_EQ(deadline.remaining(), absl::InfiniteDuration());
    EXPECT_EQ(deadline.PollTimeout(), -1);
    EXPECT_EQ(deadline, Deadline::Never());
  }
}

TEST(DeadlineTest, TheEarlierOneIsLess) {
  const Deadline soon = Deadline::In(absl::Minutes(1));
  const Deadline late = soon + absl::Minutes(1);
  EXPECT_TRUE(soon < late && soon <= late && late > soon && late >= soon && soon != late);
  EXPECT_EQ(std::min(late, soon), soon);
  EXPECT_EQ(std::min(Deadline::Never(), late), late);
  EXPECT_EQ(late.time() - soon.time(), absl::Minutes(1));
}

TEST(DeadlineTest, APollThatLastsAsLongAsItSaysEndsAfterTheDeadline) {
  for (int i = 0; i < 20; ++i) {
    const Deadline deadline = Deadline::In(absl::Microseconds(100 + 50 * i));
    poll(nullptr, 0, deadline.PollTimeout());
    EXPECT_TRUE(deadline.passed());
  }
  EXPECT_EQ(Deadline::In(absl::Hours(24 * 365)).PollTimeout(), std::numeric_limits<int>::max());
}

TEST(DeadlineTest, ItIsTheSameTimeBySteadyClock) {
  const auto before = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::In(absl::Seconds(5));
  const auto after = std::chrono::steady_clock::now();
  EXPECT_GE(deadline.ToSteady(), before + std::chrono::seconds(5));
  EXPECT_LE(deadline.ToSteady(), after + std::chrono::seconds(5));
  // Centuries away is as far as that clock goes.
  EXPECT_GT(Deadline::In(absl::Hours(1e12)).ToSteady(), after);
}

constexpr absl::Duration kSecond = absl::Seconds(1);

TEST(PatientDeadlineTest, PassesInTimeForAProcessThatRuns) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + 10 * kSecond));
  int looks = 0;
  MonotonicTime now;
  do {
    now = patience.next_look().time() + absl::Milliseconds(100);
    ++looks;
  } while (!patience.PassedAt(now));
  EXPECT_LT(now, start + 11 * kSecond);
  EXPECT_GE(looks, 9);
}

TEST(PatientDeadlineTest, APauseMovesIt) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + 10 * kSecond));
  EXPECT_FALSE(patience.PassedAt(start + absl::Hours(1)));  // stopped within the first second
  MonotonicTime now = start + absl::Hours(1);
  int looks = 0;
  while (!patience.PassedAt(now)) {
    now = patience.next_look().time();
    ++looks;
  }
  EXPECT_GE(now, start + absl::Hours(1) + 8 * kSecond);
  EXPECT_LE(now, start + absl::Hours(1) + 11 * kSecond);
}

TEST(PatientDeadlineTest, WhoIsWokenEarlyIsNotLate) {
  const MonotonicTime start = MonotonicTime::Now();
  PatientDeadline patience(Deadline::At(start + kSecond));
  EXPECT_FALSE(patience.PassedAt(start + absl::Milliseconds(1)));
  EXPECT_FALSE(patience.PassedAt(start + absl::Milliseconds(2)));
  EXPECT_TRUE(patience.PassedAt(start + kSecond));
}

TEST(PatientDeadlineTest, OneThatHasPassedIsOverAtTheFirstLook) {
  EXPECT_TRUE(PatientDeadline(Deadline::Now()).Passed());
}

TEST(PatientDeadlineTest, NeverStaysNever) {
  PatientDeadline patience(Deadline::Never());
  EXPECT_TRUE(patience.next_look().never());
  EXPECT_FALSE(patience.Passed());
}

}  // namespace
}  // namespace gradsync
