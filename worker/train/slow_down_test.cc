#include "worker/train/slow_down.h"

#include "core/base/monotonic_time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Sleeps longer than it is asked to, as a system does.
class SlowDownTest : public testing::Test {
 protected:
  SlowDown::Clock Clock() {
    return {[this] { return now_; },
            [this](absl::Duration time) {
              ++sleeps_;
              now_ += time + oversleep_;
            }};
  }

  absl::Duration Elapsed() const { return now_ - MonotonicTime(); }

  MonotonicTime now_;
  absl::Duration oversleep_;
  int sleeps_ = 0;
};

TEST_F(SlowDownTest, ComputationTakesTheFactorTimesAsLongAtEachPoint) {
  SlowDown slow(Clock());
  slow.Begin(3);
  for (int i = 1; i <= 5; ++i) {
    now_ += absl::Milliseconds(10);
    slow.CatchUp();
    EXPECT_EQ(Elapsed(), i * absl::Milliseconds(30));
  }
  slow.End();
  EXPECT_EQ(Elapsed(), absl::Milliseconds(150));
}

TEST_F(SlowDownTest, ShortDebtsAreCollected) {
  SlowDown slow(Clock());
  slow.Begin(2);
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Microseconds(300);
    slow.CatchUp();
  }
  EXPECT_EQ(sleeps_, 2);
  slow.End();
  EXPECT_EQ(Elapsed(), absl::Milliseconds(6));
}

TEST_F(SlowDownTest, WhatWasSleptTooLongIsTakenOffTheNextSleep) {
  oversleep_ = absl::Milliseconds(2);
  SlowDown slow(Clock());
  slow.Begin(2);
  for (int i = 0; i < 10; ++i) {
    now_ += absl::Milliseconds(10);
    slow.CatchUp();
  }
  EXPECT_EQ(Elapsed(), absl::Milliseconds(202));
}

TEST_F(SlowDownTest, AFactorOfOneNeverSleeps) {
  SlowDown slow(Clock());
  slow.Begin(2);
  slow.Begin(1);
  now_ += absl::Milliseconds(10);
  slow.CatchUp();
  slow.End();
  EXPECT_EQ(slow.Stretch(absl::Milliseconds(10)), absl::ZeroDuration());
  EXPECT_EQ(sleeps_, 0);
}

TEST_F(SlowDownTest, EachStepStartsAfresh) {
  SlowDown slow(Clock());
  slow.Begin(2);
  now_ += absl::Milliseconds(10);
  slow.End();
  now_ += absl::Seconds(1);  // waiting for peers is not computation
  slow.Begin(4);
  now_ += absl::Milliseconds(10);
  slow.End();
  EXPECT_EQ(Elapsed(), absl::Milliseconds(20 + 1000 + 40));
}

TEST_F(SlowDownTest, WorkMeasuredElsewhereIsStretchedAfterwards) {
  oversleep_ = absl::Milliseconds(1);
  SlowDown slow(Clock());
  slow.Begin(3);
  EXPECT_EQ(slow.Stretch(absl::Milliseconds(5)), absl::Milliseconds(11));
}

}  // namespace
}  // namespace gradsync
