// A staged sync whose GPU is behind the caller, as GPUs are.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/gpu/gpu_resources.h"
#include "core/sync/manual_sync.h"
#include "core/sync/staged_sync.h"
#include "gtest/gtest.h"

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
  void BindInTwoSlots() {
    host_->OwnParameters();
    buckets_ = sync_->Bind(ThreeBucketsInTwoSlots(), Soon()).value();
  }

  // A gather that brings `value`, as far as the host is concerned.
  SyncHandle Gathered(int bucket, float value) {
    const size_t before = host_->gathered().size();
    const SyncHandle handle = sync_->Gather(bucket);
    host_->AwaitGathers(before + 1);
    host_->ResolveGather(bucket, value);
    while (!handle.done()) std::this_thread::yield();
    return handle;
  }

  // What the compute stream finds there, after all that it has to do before; waits for it.
  float Parameter(int bucket) {
    float read = -1;
    const float* const param = buckets_[bucket].param.floats();
    gpu_->Enqueue(gpu_->ComputeStream(), [&read, param] { read = param[kNumel - 1]; });
    const ScopedEvent end = *ScopedEvent::Create(gpu_);
    EXPECT_TRUE(gpu_->Record(end.get(), gpu_->ComputeStream()).ok());
    EXPECT_TRUE(gpu_->Synchronize(end.get()).ok());
    return read;
  }

  GpuStream up() const { return gpu_->streams()[2]; }  // after the compute stream and that down

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
  float* const grad = buckets_[0].grad.floats();
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
  float* const param = buckets_[1].param.floats();
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
  const float* const param = buckets_[2].param.floats();
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

TEST_F(StagedSyncBehindTest, ParametersAreNotOverwrittenWhileTheComputeStreamUsesThem) {
  BindInTwoSlots();
  EXPECT_TRUE(Gathered(0, 5).Wait(Soon()).ok());
  Notification go;
  const float* const first = buckets_[0].param.floats();
  float read = -1;
  Queue(go, [&] { read = first[kNumel - 1]; });
  const SyncHandle last = Gathered(2, 7);  // to the memory of the first; its copy is queued
  GiveOthersTime();
  go.Notify();
  EXPECT_TRUE(last.Wait(Soon()).ok());
  EXPECT_EQ(Parameter(2), 7);
  EXPECT_EQ(read, 5);
}

TEST_F(StagedSyncBehindTest, TheHostGathersOnlyWhereTheLastParametersHaveLeft) {
  BindInTwoSlots();
  Notification go;
  gpu_->Enqueue(up(), [&] { go.WaitForNotification(); });
  const SyncHandle first = Gathered(0, 5);
  const SyncHandle second = Gathered(1, 6);  // has memory of its own
  const SyncHandle last = sync_->Gather(2);
  GiveOthersTime();
  EXPECT_EQ(host_->gathered(), (std::vector<int>{0, 1}));
  go.Notify();
  EXPECT_TRUE(first.Wait(Soon()).ok());
  EXPECT_EQ(Parameter(0), 5);
  EXPECT_TRUE(second.Wait(Soon()).ok());
  EXPECT_EQ(Parameter(1), 6);
  host_->AwaitGathers(3);
  host_->ResolveGather(2, 7);
  EXPECT_TRUE(last.Wait(Soon()).ok());
  EXPECT_EQ(Parameter(2), 7);
}

// What is in use holds back what comes to its memory, on the GPU and then on the host, and nothing
// else.
TEST_F(StagedSyncBehindTest, GathersThatAreAheadOfTheComputeStreamKeepTheirOrder) {
  BindInTwoSlots();
  EXPECT_TRUE(Gathered(0, 5).Wait(Soon()).ok());
  Notification go;
  Queue(go, [] {});
  const SyncHandle last = Gathered(2, 7);      // waits for the compute stream
  const SyncHandle again = sync_->Gather(0);   // waits for the copy of that
  const SyncHandle second = sync_->Gather(1);  // has memory of its own, and its turn after
  GiveOthersTime();
  EXPECT_EQ(host_->gathered(), (std::vector<int>{0, 2}));
  EXPECT_FALSE(again.done());
  go.Notify();
  host_->AwaitGathers(4);
  EXPECT_EQ(host_->gathered(), (std::vector<int>{0, 2, 0, 1}));
  host_->ResolveGather(1, 6);
  host_->ResolveGather(0, 8);
  EXPECT_TRUE(second.Wait(Soon()).ok());
  EXPECT_TRUE(again.Wait(Soon()).ok());
  EXPECT_EQ(Parameter(1), 6);
  EXPECT_EQ(Parameter(0), 8);
}

TEST_F(StagedSyncBehindTest, TheComputeStreamWaitsForWhatIsGatheredAndTheCallerDoesNot) {
  BindInTwoSlots();
  Notification go;
  gpu_->Enqueue(up(), [&] { go.WaitForNotification(); });
  EXPECT_TRUE(Gathered(1, 6).Wait(Soon()).ok());
  std::atomic<float> read{-1};
  const float* const param = buckets_[1].param.floats();
  gpu_->Enqueue(gpu_->ComputeStream(), [&read, param] { read = param[0]; });
  GiveOthersTime();
  EXPECT_EQ(read, -1);
  go.Notify();
  EXPECT_EQ(Parameter(1), 6);
  EXPECT_EQ(read, 6);
}

TEST_F(StagedSyncBehindTest, AGradientsMemoryIsFreeWhenItHasLeftAndWasUsed) {
  BindInTwoSlots();
  Notification go;
  float* const first = buckets_[0].grad.floats();
  Queue(go, [first] { std::fill_n(first, kNumel, 7.0f); });
  const SyncHandle handle = sync_->Launch(Step(1), 0);
  GiveOthersTime();
  EXPECT_FALSE(handle.done());  // on the GPU it has not even been computed
  go.Notify();
  host_->AwaitLaunch(0);
  GiveOthersTime();
  EXPECT_FALSE(handle.done());  // the owners have yet to use it
  host_->Resolve(0);
  EXPECT_TRUE(handle.Wait(Soon()).ok());
  const SyncHandle second = sync_->Launch(Step(1), 1);
  float* const last = buckets_[2].grad.floats();
  EXPECT_EQ(last, first);
  gpu_->Enqueue(gpu_->ComputeStream(), [last] { std::fill_n(last, kNumel, 9.0f); });
  const SyncHandle third = sync_->Launch(Step(1), 2);
  host_->AwaitLaunch(2);
  EXPECT_EQ(host_->seen(), (std::vector<float>{7, 0, 9}));
  host_->Resolve(1);
  host_->Resolve(2);
  EXPECT_TRUE(second.Wait(Soon()).ok());
  EXPECT_TRUE(third.Wait(Soon()).ok());
}

// What computes next must not wait for the gradients of what computed before.
TEST_F(StagedSyncBehindTest, AGatherDoesNotWaitForExchangesBeforeIt) {
  BindInTwoSlots();
  const SyncHandle launched = sync_->Launch(Step(1), 0);
  host_->AwaitLaunch(0);
  EXPECT_TRUE(Gathered(1, 6).Wait(Soon()).ok());
  EXPECT_EQ(Parameter(1), 6);
  EXPECT_FALSE(launched.done());
  host_->Resolve(0);
  EXPECT_TRUE(launched.Wait(Soon()).ok());
}

TEST_F(StagedSyncBehindTest, ParametersAreStoredAsTheComputeStreamLeavesThem) {
  BindInTwoSlots();
  Notification go;
  float* const param = buckets_[2].param.floats();
  Queue(go, [param] { std::fill_n(param, kNumel, 5.0f); });
  absl::Status status = absl::UnknownError("");
  std::thread store([&] { status = sync_->StoreParameters(2, Soon()); });
  GiveOthersTime();
  EXPECT_EQ(host_->stored(), std::vector<float>());
  go.Notify();
  store.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(host_->stored(), std::vector<float>{5});
}

}  // namespace
}  // namespace gradsync
