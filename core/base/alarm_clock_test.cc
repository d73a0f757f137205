#include "core/base/alarm_clock.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;

TEST(AlarmClockTest, AlarmsGoOffAfterTheirDeadlinesTheEarlierFirst) {
  AlarmClock clock;
  const Deadline soon = Deadline::In(absl::Milliseconds(20));
  const Deadline later = soon + absl::Milliseconds(10);
  std::vector<int> order;
  Notification done;
  clock.Set(later, [&] {
    EXPECT_TRUE(later.passed());
    order.push_back(3);
    done.Notify();
  });
  clock.Set(soon, [&] {
    EXPECT_TRUE(soon.passed());
    order.push_back(1);
  });
  clock.Set(soon, [&] { order.push_back(2); });
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(AlarmClockTest, AnEarlierAlarmDoesNotWaitForOneThatWasSetBefore) {
  AlarmClock clock;
  clock.Set(Deadline::In(absl::Hours(1)), [] { FAIL() << "an hour early"; });
  Notification done;
  clock.Set(Deadline::Now(), [&] { done.Notify(); });
  done.WaitForNotification();
}

TEST(AlarmClockTest, OneThatIsCancelledNeverGoesOffAndLetsGoOfWhatItHolds) {
  AlarmClock clock;
  const auto held = std::make_shared<int>(0);
  const AlarmClock::Ticket ticket =
      clock.Set(Deadline::In(absl::Milliseconds(10)), [held] { *held = 1; });
  clock.Cancel(ticket);
  EXPECT_EQ(held.use_count(), 1);
  Notification later;
  clock.Set(Deadline::In(absl::Milliseconds(20)), [&] { later.Notify(); });
  later.WaitForNotification();
  EXPECT_EQ(*held, 0);
}

TEST(AlarmClockTest, CancellingOneThatIsOverOrNeverWasDoesNothing) {
  AlarmClock clock;
  Notification done;
  const AlarmClock::Ticket ticket = clock.Set(Deadline::Now(), [&] { done.Notify(); });
  done.WaitForNotification();
  clock.Cancel(ticket);
  clock.Cancel(ticket);
  clock.Cancel(0);
  clock.Cancel(ticket + 1);
  clock.Cancel(clock.Set(Deadline::Never(), [] { FAIL(); }));
}

TEST(AlarmClockTest, CancellingOneThatGoesOffWaitsUntilItHas) {
  AlarmClock clock;
  Notification began;
  Notification go_on;
  bool over = false;
  const AlarmClock::Ticket ticket = clock.Set(Deadline::Now(), [&] {
    began.Notify();
    go_on.WaitForNotification();
    over = true;
  });
  began.WaitForNotification();
  std::thread helper([&] { go_on.Notify(); });
  clock.Cancel(ticket);
  EXPECT_TRUE(over);
  helper.join();
}

TEST(AlarmClockTest, AnAlarmMayCancelItselfAndSetAnother) {
  AlarmClock clock;
  Notification done;
  Notification set;
  AlarmClock::Ticket ticket = 0;
  ticket = clock.Set(Deadline::Now(), [&] {
    set.WaitForNotification();
    clock.Cancel(ticket);
    clock.Set(Deadline::Now(), [&] { done.Notify(); });
  });
  set.Notify();
  done.WaitForNotification();
}

// It went off when the process came back, because a clock that was not waiting missed the pause.
TEST(AlarmClockTest, AProcessThatIsStoppedWhileACallbackRunsFindsItsAlarmsLaterToo) {
  AlarmClock clock;
  MonotonicTime resumed;
  Notification both_set;
  Notification done;
  clock.Set(Deadline::Now(), [&] {
    both_set.WaitForNotification();
    SuspendProcess(absl::Seconds(2));
    resumed = MonotonicTime::Now();
  });
  clock.Set(Deadline::In(absl::Seconds(1)), [&] {
    EXPECT_GT(MonotonicTime::Now() - resumed, absl::Milliseconds(500));
    done.Notify();
  });
  both_set.Notify();
  done.WaitForNotification();
}

// The clock's thread finds the pause only afterwards, and would give this alarm what it lost, which
// is nothing.
TEST(AlarmClockTest, AnAlarmThatIsSetAfterAStopIsNotLaterByIt) {
  AlarmClock clock;
  Notification began;
  Notification go_on;
  clock.Set(Deadline::Now(), [&] {
    began.Notify();
    go_on.WaitForNotification();
  });
  began.WaitForNotification();
  SuspendProcess(absl::Seconds(2));
  const MonotonicTime resumed = MonotonicTime::Now();
  Notification done;
  clock.Set(Deadline::At(resumed), [&] { done.Notify(); });
  go_on.Notify();
  done.WaitForNotification();
  EXPECT_LT(MonotonicTime::Now() - resumed, absl::Milliseconds(1500));
}

TEST(AlarmClockTest, WhatIsLeftAtTheEndNeverGoesOff) {
  const auto held = std::make_shared<int>(0);
  {
    AlarmClock clock;
    clock.Set(Deadline::In(absl::Hours(1)), [held] { *held = 1; });
    clock.Set(Deadline::Never(), [held] { *held = 1; });
  }
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace gradsync
