// Over a GPU whose compute stream is behind the caller; bits are compared in
// tests/ddp_device_test.cc.

#include "gradsync/ddp/device_worker_optimizer.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "core/sync/buckets.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kNumel = 300;

Plan TwoBuckets() {
  OptimizerSpec spec = {OptimizerKind::kSgd, {{}}};
  spec.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {kNumel}, {1}, 0}, {"b", {kNumel}, {1}, 0}}, {{0}, {1}}, spec,
                            /*world_size=*/1, /*chunk_bytes=*/512);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.5;
  return step;
}

class DeviceWorkerOptimizerTest : public testing::Test {
 protected:
  DeviceWorkerOptimizerTest() {
    buckets_ = AllocateDeviceBuckets(plan_, gpu_).value();
    optimizer_ = CreateDeviceWorkerOptimizer(plan_, MemoryOf(buckets_), gpu_).value();
  }
  ~DeviceWorkerOptimizerTest() override {
    optimizer_.reset();
    buckets_.clear();
    EXPECT_EQ(gpu_->live_objects(), QueuedGpu::kOwnObjects);
  }

  static void Fill(const FlatBuffer& flat, float value) {
    std::fill_n(flat.floats(), kNumel, value);
  }
  static float First(const FlatBuffer& flat) { return flat.floats()[0]; }

  // Queues what backward has still to compute: gradients of 2 everywhere, after `go`.
  void QueueGradients(const Notification& go) {
    gpu_->Enqueue(gpu_->ComputeStream(), [this, &go] {
      go.WaitForNotification();
      for (const GradBucket& bucket : buckets_) Fill(bucket.grad, 2);
    });
  }

  void Finish() {
    const ScopedEvent done = *ScopedEvent::Create(gpu_);
    ASSERT_TRUE(gpu_->Record(done.get(), gpu_->ComputeStream()).ok());
    ASSERT_TRUE(gpu_->Synchronize(done.get()).ok());
  }

  void UpdateAll(const StepOptions& step) {
    for (int b : {0, 1}) ASSERT_EQ(optimizer_->Update(step, b), absl::OkStatus());
  }

  // Runs `call` while the stream is held before the gradients; it must wait for them.
  void ExpectWaitsForTheStream(const std::function<void()>& call) {
    Notification go;
    QueueGradients(go);
    std::atomic<bool> returned{false};
    std::thread thread([&] {
      call();
      returned = true;
    });
    GiveOthersTime();
    EXPECT_FALSE(returned);
    go.Notify();
    thread.join();
  }

  const Plan plan_ = TwoBuckets();
  const std::shared_ptr<QueuedGpu> gpu_ = std::make_shared<QueuedGpu>();
  std::vector<GradBucket> buckets_;
  std::unique_ptr<WorkerOptimizer> optimizer_;
};

constexpr double kNorm = 48.98979485566356;  // of 600 times 2

TEST_F(DeviceWorkerOptimizerTest, ClippingAndUpdatesFollowTheGradientsAndWaitForNothing) {
  Notification go;
  QueueGradients(go);
  const int before = gpu_->synchronizations();
  EXPECT_EQ(optimizer_->ClipGradients(kNorm / 2), absl::OkStatus());
  UpdateAll(Step(1));
  EXPECT_EQ(gpu_->synchronizations(), before);
  EXPECT_EQ(optimizer_->grad_norm(), 0);  // not known yet
  go.Notify();
  Finish();
  EXPECT_NEAR(optimizer_->grad_norm(), kNorm, 1e-9);
  for (const GradBucket& bucket : buckets_) {
    EXPECT_NEAR(First(bucket.grad), 1, 1e-6);
    EXPECT_NEAR(First(bucket.param), -0.5, 1e-6);
  }
}

// A launch for each chunk took longer than the sums.
TEST_F(DeviceWorkerOptimizerTest, ClippingLaunchesAsManyKernelsForManyChunksAsForOne) {
  ASSERT_GT(plan_.buckets()[0].layout.slots(), 1);
  EXPECT_EQ(optimizer_->ClipGradients(1), absl::OkStatus());
  EXPECT_EQ(gpu_->calls("SumsOfSquares"), 1);
  EXPECT_EQ(gpu_->calls("SumOfSquares"), 0);
  EXPECT_EQ(gpu_->calls("ScaleBy"), 2);  // one for each bucket
  EXPECT_EQ(gpu_->calls("RunOnHost"), 1);
  Finish();
}

TEST_F(DeviceWorkerOptimizerTest, TheNormIsThatOfTheGradientsWhenTheyAreThere) {
  double norm = 0;
  ExpectWaitsForTheStream([&] { norm = optimizer_->GradientNorm().value(); });
  EXPECT_NEAR(norm, kNorm, 1e-9);
}

TEST_F(DeviceWorkerOptimizerTest, StateIsNotReplacedWhileQueuedStepsUseIt) {
  ExpectWaitsForTheStream([&] {
    UpdateAll(Step(1));
    EXPECT_EQ(optimizer_->Import(OptimizerState()), absl::OkStatus());
  });
  EXPECT_FLOAT_EQ(First(buckets_[0].param), -1);
}

TEST_F(DeviceWorkerOptimizerTest, StateIsExportedAsTheQueuedStepsLeaveIt) {
  OptimizerState state;
  ExpectWaitsForTheStream([&] {
    UpdateAll(Step(1));
    state = optimizer_->Export(1).value();
  });
  EXPECT_EQ(state.slots["b"]["momentum_buffer"], std::vector<float>(kNumel, 2));
}

TEST_F(DeviceWorkerOptimizerTest, AnEmptyStateStartsFromTheBeginning) {
  for (const GradBucket& bucket : buckets_) Fill(bucket.grad, 2);
  UpdateAll(Step(1));
  EXPECT_EQ(optimizer_->Import(OptimizerState()), absl::OkStatus());
  EXPECT_TRUE(optimizer_->Export(1)->slots.empty());
  UpdateAll(Step(1));
  Finish();
  EXPECT_FLOAT_EQ(First(buckets_[0].param), -2);  // without momentum from the step before
}

TEST_F(DeviceWorkerOptimizerTest, WhatAStateDoesNotHaveStartsFromTheBeginning) {
  for (const GradBucket& bucket : buckets_) Fill(bucket.grad, 2);
  UpdateAll(Step(1));
  OptimizerState state = optimizer_->Export(1).value();
  state.slots.erase("b");
  EXPECT_EQ(optimizer_->Import(state), absl::OkStatus());
  state = optimizer_->Export(1).value();
  EXPECT_EQ(state.slots["a"]["momentum_buffer"], std::vector<float>(kNumel, 2));
  EXPECT_EQ(state.slots["b"]["momentum_buffer"], std::vector<float>(kNumel, 0));
}

}  // namespace
}  // namespace gradsync
