#include "worker/train/training_clock.h"

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

class TrainingClockTest : public testing::Test {
 protected:
  // Queues a step of so much work, and what the host does between steps.
  void Step(absl::Duration work) {
    ASSERT_TRUE(clock_.BeginStep().ok());
    gpu_->Work(work);
    ASSERT_TRUE(clock_.EndStep().ok());
  }

  absl::Duration Total() { return clock_.Take()->total; }

  const std::shared_ptr<TimedGpu> gpu_ = std::make_shared<TimedGpu>();
  TrainingClock clock_{gpu_};
};

// What the host takes to queue a step was taken for the step.
TEST_F(TrainingClockTest, AStepOfFiveMillisecondsIsFiveHoweverSoonTheHostReturns) {
  ASSERT_TRUE(clock_.Drain().ok());
  for (int i = 0; i < 3; ++i) Step(5 * kMs);
  ASSERT_TRUE(clock_.Drain().ok());
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(*clock_.Known());
    const TrainingClock::StepTime time = *clock_.Take();
    EXPECT_EQ(time.total, 5 * kMs);
    EXPECT_EQ(time.end, i * 5 * kMs);
  }
}

TEST_F(TrainingClockTest, AStepIsKnownWhenTheDeviceHasDoneIt) {
  Notification go;
  Step(kMs);
  gpu_->Enqueue(gpu_->ComputeStream(), [&] { go.WaitForNotification(); });
  Step(2 * kMs);
  EXPECT_EQ(Total(), kMs);  // waits for it alone
  EXPECT_FALSE(*clock_.Known());
  go.Notify();
  EXPECT_EQ(Total(), 2 * kMs);
}

TEST_F(TrainingClockTest, WorkBetweenStepsBelongsToTheNextOne) {
  Step(kMs);
  gpu_->Work(3 * kMs);
  Step(kMs);
  EXPECT_EQ(Total(), kMs);
  EXPECT_EQ(Total(), 4 * kMs);
}

TEST_F(TrainingClockTest, WorkInAPauseBelongsToNoStep) {
  Step(kMs);
  clock_.Pause();
  gpu_->Work(7 * kMs);
  Step(kMs);
  EXPECT_EQ(Total(), kMs);
  const TrainingClock::StepTime time = *clock_.Take();
  EXPECT_EQ(time.total, kMs);
  EXPECT_EQ(time.end, 2 * kMs);
}

TEST_F(TrainingClockTest, DrainingWaitsForAllThatWasQueued) {
  bool done = false;
  gpu_->Enqueue(gpu_->ComputeStream(), [&] {
    GiveOthersTime();
    done = true;
  });
  ASSERT_TRUE(clock_.Drain().ok());
  EXPECT_TRUE(done);
}

TEST_F(TrainingClockTest, EventsAreGivenBack) {
  for (int i = 0; i < 3; ++i) Step(kMs);
  for (int i = 0; i < 3; ++i) Total();
  EXPECT_EQ(gpu_->live_objects(), TimedGpu::kOwnObjects + 1);  // the last end
}

TEST_F(TrainingClockTest, ErrorsOfTheDeviceAreReturned) {
  Step(kMs);
  gpu_->FailNext("Record", absl::InternalError("lost"));
  EXPECT_EQ(clock_.Drain(), absl::InternalError("lost"));
  gpu_->FailNext("Elapsed", absl::InternalError("lost"));
  EXPECT_EQ(clock_.Take().status(), absl::InternalError("lost"));
}

TEST(HostTrainingClockTest, StepsAreTimedByTheHostAndPausesLeftOut) {
  TrainingClock clock(nullptr);
  const MonotonicTime begin = MonotonicTime::Now();
  ASSERT_TRUE(clock.BeginStep().ok());
  ASSERT_TRUE(clock.EndStep().ok());
  clock.Pause();
  GiveOthersTime();
  ASSERT_TRUE(clock.BeginStep().ok());
  const MonotonicTime second = MonotonicTime::Now();
  GiveOthersTime();
  ASSERT_TRUE(clock.EndStep().ok());
  const absl::Duration all = MonotonicTime::Now() - begin;
  EXPECT_TRUE(*clock.Known());
  const TrainingClock::StepTime first = *clock.Take();
  EXPECT_EQ(first.total, first.end);
  const TrainingClock::StepTime last = *clock.Take();
  EXPECT_GE(last.total, absl::Milliseconds(20));
  EXPECT_LE(last.total, MonotonicTime::Now() - second + absl::Milliseconds(1));
  EXPECT_LE(last.end, all - absl::Milliseconds(20));
}

}  // namespace
}  // namespace gradsync
