// A staged sync whose GPU is behind the caller, as GPUs are.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/notification.h"
#include "gpu/queued_gpu.h"
#include "gtest/gtest.h"
#include "sync/manual_sync.h"
#include "sync/staged_sync.h"

namespace gradsync {
namespace {

// A GPU whose compute stream is behind the caller.
class StagedSyncBehindTest : public testing::Test {
 protected:
  StagedSyncBehindTest() {
    auto host = std::make_unique<ManualSync>();
    host_ = host.get();
    sync_ = CreateStagedSync(std::move(host), gpu_);
  }
  ~StagedSyncBehindTest() override {
    sync_.reset();
    buckets_.clear();
    EXPECT_EQ(gpu_->live_objects(), QueuedGpu::kOwnObjects);
  }

  void Bind() { buckets_ = sync_->Bind(ThreeBuckets(), Soon()).value(); }

  // Queues on the compute stream: waits for `go`, then does `work`.
  void Queue(const Notification& go, std::function<void()> work) {
    gpu_->Enqueue(gpu_->ComputeStream(), [&go, work = std::move(work)] {
      go.WaitForNotification();
      work();
    });
  }

  const std::shared_ptr<QueuedGpu> gpu_ = std::make_shared<QueuedGpu>();
  ManualSync* host_ = nullptr;
  std::unique_ptr<GradientSync> sync_;
  std::vector<GradBucket> buckets_;
};

TEST_F(StagedSyncBehindTest, AGradientLeavesWhenTheComputeStreamHasIt) {
  Bind();
  Notification go;
  float* const grad = buckets_[0].grad.data_ptr<float>();
  Queue(go, [grad] { std::fill_n(grad, kNumel, 7.0f); });
  const SyncHandle handle = sync_->Launch(Step(1), 0);
  GiveOthersTime();
  EXPECT_EQ(host_->launched(), std::vector<int>());
  go.Notify();
  host_->AwaitLaunch(0);
  EXPECT_EQ(host_->seen(), std::vector<float>{7});
  host_->Resolve(0);
  EXPECT_TRUE(handle.Wait(Soon()).ok());
}

// The fake works off a stream that is destroyed; CUDA does not wait for it.
TEST_F(StagedSyncBehindTest, BothStreamsAreWaitedForBeforeTheirMemoryGoes) {
  Bind();
  const int before = gpu_->synchronizations();
  sync_.reset();
  EXPECT_EQ(gpu_->synchronizations(), before + 2);
}

TEST_F(StagedSyncBehindTest, ABroadcastTakesParametersThatAreStillBeingComputed) {
  Bind();
  Notification go;
  float* const param = buckets_[1].param.data_ptr<float>();
  Queue(go, [param] { std::fill_n(param, kNumel, 5.0f); });
  absl::Status status = absl::UnknownError("");
  std::thread broadcast([&] { status = sync_->BroadcastParameters(Soon()); });
  GiveOthersTime();
  go.Notify();
  broadcast.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(param[0], 50);
}

TEST_F(StagedSyncBehindTest, WhatIsQueuedStillReadsTheOldParametersWhenNewOnesComeFromTheOwner) {
  host_->OwnParameters();
  Bind();
  host_->SetParameters(3);
  Notification go;
  const float* const param = buckets_[2].param.data_ptr<float>();
  float read = -1;
  Queue(go, [&] { read = param[kNumel - 1]; });
  std::atomic<bool> returned{false};
  std::thread settle([&] {
    EXPECT_TRUE(sync_->Settle(Soon()).ok());
    returned = true;
  });
  GiveOthersTime();
  EXPECT_FALSE(returned);  // else the host could write what is still to be copied
  go.Notify();
  settle.join();
  EXPECT_EQ(read, 0);
  EXPECT_EQ(param[kNumel - 1], 3);
}

}  // namespace
}  // namespace gradsync
