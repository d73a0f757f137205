#include "gradsync/ddp/stream_timer.h"

#include <cstdint>
#include <memory>

#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

class StreamTimerTest : public testing::Test {
 protected:
  // Queues a step whose two waits take `wait` each, between them 1 ms of other work.
  void Step(int64_t step, absl::Duration wait) {
    ASSERT_TRUE(timer_->BeginStep(step).ok());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(timer_->BeforeWait().ok());
      gpu_->Work(wait);
      ASSERT_TRUE(timer_->AfterWait().ok());
      gpu_->Work(kMs);
    }
  }

  void HoldBack(const Notification& go) {
    gpu_->Enqueue(gpu_->ComputeStream(), [&go] { go.WaitForNotification(); });
  }

  void Finish() {
    const ScopedEvent end = *ScopedEvent::Create(gpu_);
    ASSERT_TRUE(gpu_->Record(end.get(), gpu_->ComputeStream()).ok());
    ASSERT_TRUE(gpu_->Synchronize(end.get()).ok());
  }

  const std::shared_ptr<TimedGpu> gpu_ = std::make_shared<TimedGpu>();
  const std::unique_ptr<StreamTimer> timer_ = *StreamTimer::Create(gpu_, 2);
};

TEST_F(StreamTimerTest, NothingIsKnownBeforeTheDeviceHasDoneAStep) {
  EXPECT_EQ(timer_->Newest()->step, 0);
  Notification go;
  HoldBack(go);
  Step(1, kMs);
  EXPECT_EQ(timer_->Newest()->step, 0);
  EXPECT_FALSE(timer_->Of(1)->has_value());
  go.Notify();
  Finish();
  EXPECT_EQ(timer_->Newest()->step, 1);
  EXPECT_EQ(timer_->Newest()->time, 2 * kMs);
  EXPECT_EQ(**timer_->Of(1), 2 * kMs);
}

// Two steps were kept, neither of which a GPU that is several behind has done: every step said 0.
TEST_F(StreamTimerTest, AHostSeveralStepsAheadIsToldTheNewestStepThatIsDone) {
  Step(1, 3 * kMs);
  Step(2, 5 * kMs);
  Finish();
  Notification go;
  HoldBack(go);
  for (int64_t step = 3; step <= 8; ++step) {
    Step(step, kMs);
    EXPECT_EQ(timer_->Newest()->step, 2);
    EXPECT_EQ(timer_->Newest()->time, 10 * kMs);
  }
  EXPECT_EQ(**timer_->Of(1), 6 * kMs);
  go.Notify();
  Finish();
  EXPECT_EQ(timer_->Newest()->step, 8);
  for (int64_t step = 3; step <= 8; ++step) EXPECT_EQ(**timer_->Of(step), 2 * kMs) << step;
}

TEST_F(StreamTimerTest, AStepIsNotMeasuredWithEventsThatTheDeviceHasYetToReach) {
  Notification go;
  HoldBack(go);
  for (int64_t step = 1; step <= 10; ++step) Step(step, step * kMs);
  EXPECT_EQ(timer_->Newest()->step, 0);
  go.Notify();
  Finish();
  EXPECT_EQ(timer_->Newest()->step, 8);
  EXPECT_EQ(**timer_->Of(1), 2 * kMs);
  EXPECT_EQ(timer_->Newest()->time, 16 * kMs);
  EXPECT_FALSE(timer_->Of(9)->has_value());
  Step(11, 11 * kMs);
  Finish();
  EXPECT_EQ(timer_->Newest()->step, 11);
  EXPECT_EQ(timer_->Newest()->time, 22 * kMs);
  EXPECT_FALSE(timer_->Of(1)->has_value());
}

}  // namespace
}  // namespace gradsync
