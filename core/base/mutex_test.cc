#include "core/base/mutex.h"

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

struct Flag {
  Mutex mutex;
  CondVar changed;
  bool set ABSL_GUARDED_BY(mutex) = false;

  // Whether it was set by the deadline.
  bool Await(Deadline deadline) {
    MutexLock lock(&mutex);
    while (!set && !changed.WaitWithDeadline(&mutex, deadline)) {
    }
    return set;
  }
  void Set() {
    MutexLock lock(&mutex);
    set = true;
    changed.SignalAll();
  }
};

TEST(CondVarTest, AWaitThatNobodyEndsEndsAtTheDeadlineAndNotBefore) {
  Flag flag;
  const Deadline deadline = Deadline::In(absl::Milliseconds(20));
  EXPECT_FALSE(flag.Await(deadline));
  EXPECT_TRUE(deadline.passed());
}

TEST(CondVarTest, AWaitWhoseDeadlineHasPassedReturnsAtOnce) {
  Flag flag;
  EXPECT_FALSE(flag.Await(Deadline::Now()));
  EXPECT_FALSE(flag.Await(Deadline::In(-absl::InfiniteDuration())));
}

TEST(CondVarTest, ASignalEndsAWaitWithAnyDeadline) {
  for (const Deadline deadline :
       {Deadline::In(absl::Minutes(5)), Deadline::Never(), Deadline::In(absl::Hours(1e12)),
        Deadline::In(absl::Hours(1e5))}) {
    Flag flag;
    std::thread setter([&] { flag.Set(); });
    EXPECT_TRUE(flag.Await(deadline));
    setter.join();
  }
}

}  // namespace
}  // namespace gradsync
