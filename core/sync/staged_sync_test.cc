#include "core/sync/staged_sync.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/sync/manual_sync.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

class StagedSyncTest : public testing::Test {
 protected:
  StagedSyncTest() : gpu_(std::make_shared<FakeGpu>()) {
    auto host = std::make_unique<ManualSync>();
    host_ = host.get();
    sync_ = CreateStagedSync(std::move(host), gpu_);
  }
  ~StagedSyncTest() override {
    sync_.reset();
    buckets_.clear();
    EXPECT_EQ(gpu_->live_objects(), 0);
    EXPECT_EQ(gpu_->unpinned_copies(), 0);
  }

  void Bind(const Plan& plan = ThreeBuckets()) {
    auto buckets = sync_->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    buckets_ = *std::move(buckets);
    for (int b = 0; b < kBuckets; ++b)
      std::fill_n(buckets_[b].grad.floats(), buckets_[b].grad.numel, static_cast<float>(b + 1));
  }

  float grad(int bucket) const { return buckets_[bucket].grad.floats()[0]; }

  GpuStream down() const { return gpu_->streams()[0]; }
  GpuStream up() const { return gpu_->streams()[1]; }

  const std::shared_ptr<FakeGpu> gpu_;
  ManualSync* host_ = nullptr;
  std::unique_ptr<GradientSync> sync_;
  std::vector<GradBucket> buckets_;
};

void AwaitDone(const SyncHandle& handle) {
  while (!handle.done()) std::this_thread::yield();
}

TEST_F(StagedSyncTest, ACopyThatIsHeldHoldsItsBucketAndNotThoseBefore) {
  Bind();
  const SyncHandle first = sync_->Launch(Step(1), 0);
  host_->AwaitLaunch(0);
  Notification go;
  gpu_->Enqueue(down(), [&] { go.WaitForNotification(); });
  const SyncHandle second = sync_->Launch(Step(1), 1);
  const SyncHandle third = sync_->Launch(Step(1), 2);
  host_->Resolve(0);
  EXPECT_TRUE(first.Wait(Soon()).ok());
  EXPECT_EQ(grad(0), 10);
  EXPECT_EQ(host_->launched(), std::vector<int>{0});
  go.Notify();
  host_->AwaitLaunch(2);
  EXPECT_EQ(host_->seen(), (std::vector<float>{1, 2, 3}));
  host_->Resolve(1);
  host_->Resolve(2);
  EXPECT_TRUE(third.Wait(Soon()).ok());
  EXPECT_TRUE(second.Wait(Soon()).ok());
  EXPECT_EQ(grad(1), 20);
  EXPECT_EQ(grad(2), 30);
}

TEST_F(StagedSyncTest, TheComputeStreamWaitsForTheCopyBackAndTheCallerDoesNotBefore) {
  Bind();
  Notification go;
  gpu_->Enqueue(up(), [&] { go.WaitForNotification(); });
  const SyncHandle handle = sync_->Launch(Step(1), 0);
  host_->AwaitLaunch(0);
  host_->Resolve(0);
  AwaitDone(handle);  // though the copy waits
  EXPECT_EQ(grad(0), 1);
  const int waits = gpu_->calls("StreamWait");
  std::atomic<bool> returned{false};
  std::thread releaser([&] {
    while (gpu_->calls("StreamWait") == waits && !returned) std::this_thread::yield();
    go.Notify();
  });
  EXPECT_TRUE(handle.Wait(Soon()).ok());
  EXPECT_EQ(grad(0), 10);
  returned = true;
  releaser.join();
}

TEST_F(StagedSyncTest, AStepWaitsForTheGpuNowhere) {
  Bind();
  ASSERT_TRUE(sync_->BroadcastParameters(Soon()).ok());
  const int before = gpu_->synchronizations();
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<SyncHandle> handles;
    for (int b = 0; b < kBuckets; ++b) handles.push_back(sync_->Launch(Step(step), b));
    for (int b = 0; b < kBuckets; ++b) {
      while (host_->launched().size() < static_cast<size_t>((step - 1) * kBuckets + b + 1)) {
        std::this_thread::yield();
      }
      host_->Resolve(b);
      ASSERT_TRUE(handles[b].Wait(Soon()).ok());
    }
  }
  EXPECT_EQ(gpu_->synchronizations(), before);
  EXPECT_EQ(grad(0), 1000);
  EXPECT_EQ(host_->launched(), (std::vector<int>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST_F(StagedSyncTest, TheNextGradientComesToTheHostOnlyWhenTheLastResultHasLeft) {
  Bind();
  Notification go;
  gpu_->Enqueue(up(), [&] { go.WaitForNotification(); });
  for (int b = 0; b < kBuckets; ++b) {
    const SyncHandle handle = sync_->Launch(Step(1), b);
    host_->AwaitLaunch(b);
    host_->Resolve(b);
    AwaitDone(handle);
  }
  // Nobody waited for the results, and their copies are held: the next step must not overwrite
  // them.
  std::vector<SyncHandle> handles;
  for (int b = 0; b < kBuckets; ++b) handles.push_back(sync_->Launch(Step(2), b));
  go.Notify();
  while (host_->launched().size() < 6) std::this_thread::yield();
  for (int b = 0; b < kBuckets; ++b) {
    host_->Resolve(b);
    EXPECT_TRUE(handles[b].Wait(Soon()).ok());
  }
  EXPECT_EQ(host_->seen(), (std::vector<float>{1, 2, 3, 10, 20, 30}));
  EXPECT_EQ(grad(0), 100);
}

TEST_F(StagedSyncTest, ALaunchBeforeTheLastStepIsCompleteIsRefused) {
  Bind();
  std::vector<SyncHandle> handles;
  for (int b = 0; b < kBuckets; ++b) handles.push_back(sync_->Launch(Step(1), b));
  host_->AwaitLaunch(2);
  const absl::Status refused = sync_->Launch(Step(2), 0).Wait(Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  for (const SyncHandle& handle : handles) EXPECT_EQ(handle.Wait(Soon()), refused);
}

TEST_F(StagedSyncTest, AnyCallThatFailsWhenABucketIsLaunchedFailsTheGroupWithItsStatus) {
  for (const std::string method : {"Record", "StreamWait", "Copy", "RunOnHost"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    auto manual = std::make_unique<ManualSync>();
    auto sync = CreateStagedSync(std::move(manual), gpu);
    ASSERT_TRUE(sync->Bind(ThreeBuckets(), Soon()).ok());
    const SyncHandle before = sync->Launch(Step(1), 0);
    const absl::Status failure = absl::InternalError(absl::StrCat("no ", method));
    gpu->FailNext(method, failure);
    const SyncHandle handle = sync->Launch(Step(1), 1);
    EXPECT_EQ(handle.Wait(Soon()), failure);
    EXPECT_EQ(before.Wait(Soon()), failure);
    EXPECT_EQ(sync->Launch(Step(1), 2).Wait(Soon()), failure);
    EXPECT_EQ(sync->status(), failure);
    sync.reset();
    EXPECT_EQ(gpu->live_objects(), 0) << method;
  }
}

TEST_F(StagedSyncTest, ACopyBackThatFailsFailsTheGroupWithItsStatus) {
  for (const std::string method : {"Record", "Copy"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    auto manual = std::make_unique<ManualSync>();
    ManualSync* const host = manual.get();
    auto sync = CreateStagedSync(std::move(manual), gpu);
    ASSERT_TRUE(sync->Bind(ThreeBuckets(), Soon()).ok());
    const SyncHandle handle = sync->Launch(Step(1), 0);
    host->AwaitLaunch(0);
    const absl::Status failure = absl::InternalError(absl::StrCat("no ", method));
    gpu->FailNext(method, failure);
    host->Resolve(0);
    EXPECT_EQ(handle.Wait(Soon()), failure);
    EXPECT_EQ(sync->status(), failure);
    sync.reset();
    EXPECT_EQ(gpu->live_objects(), 0) << method;
  }
}

TEST_F(StagedSyncTest, AComputeStreamThatCannotWaitFailsTheGroup) {
  Bind();
  const SyncHandle handle = sync_->Launch(Step(1), 0);
  host_->AwaitLaunch(0);
  host_->Resolve(0);
  AwaitDone(handle);
  const absl::Status failure = absl::InternalError("no StreamWait");
  gpu_->FailNext("StreamWait", failure);
  EXPECT_EQ(handle.Wait(Soon()), failure);
  EXPECT_EQ(sync_->status(), failure);
}

TEST_F(StagedSyncTest, AnErrorOfTheGpuIsNoticedThoughItsCopyNeverEnds) {
  Bind();
  Notification go;
  gpu_->Enqueue(down(), [&] { go.WaitForNotification(); });
  const absl::Status failure = absl::InternalError("an illegal memory access");
  gpu_->FailNext("Done", failure);
  EXPECT_EQ(sync_->Launch(Step(1), 0).Wait(Soon()), failure);
  EXPECT_EQ(host_->launched(), std::vector<int>());
  go.Notify();
  sync_.reset();  // and its streams, one of which may have yet to wait
}

TEST_F(StagedSyncTest, WithoutMemoryOrPinsOrStreamsBindFailsTheGroup) {
  for (const std::string method :
       {"AllocateDevice", "RegisterHost", "CreateStream", "CreateEvent"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    auto manual = std::make_unique<ManualSync>();
    auto sync = CreateStagedSync(std::move(manual), gpu);
    const absl::Status failure = absl::ResourceExhaustedError(absl::StrCat("no ", method));
    gpu->FailNext(method, failure);
    EXPECT_EQ(sync->Bind(ThreeBuckets(), Soon()).status(), failure);
    EXPECT_EQ(sync->status(), failure);
    sync.reset();
    EXPECT_EQ(gpu->live_objects(), 0) << method;
  }
}

TEST_F(StagedSyncTest, HandlesOutliveASyncThatIsDestroyedInAStep) {
  Bind();
  const SyncHandle resolved = sync_->Launch(Step(1), 0);
  host_->AwaitLaunch(0);
  host_->Resolve(0);
  AwaitDone(resolved);
  const SyncHandle open = sync_->Launch(Step(1), 1);
  sync_.reset();
  EXPECT_TRUE(absl::IsCancelled(open.Wait(Soon()))) << open.Wait(Soon());
  EXPECT_TRUE(resolved.Wait(Soon()).ok());
  EXPECT_EQ(grad(0), 10);
}

TEST_F(StagedSyncTest, TheGpuHasTheSlotsAndNoMore) {
  host_->OwnParameters();
  Bind(ThreeBucketsInTwoSlots());
  constexpr size_t kSlot = 512;  // 100 floats, in whole 256 bytes
  EXPECT_EQ(gpu_->most_device_bytes(), 4 * kSlot);
  EXPECT_EQ(buckets_[2].grad.data, buckets_[0].grad.data);
  EXPECT_EQ(buckets_[2].param.data, buckets_[0].param.data);
  EXPECT_NE(buckets_[1].param.data, buckets_[0].param.data);
}

TEST_F(StagedSyncTest, AShardedStepWaitsForTheGpuNowhere) {
  host_->OwnParameters();
  Bind(ThreeBucketsInTwoSlots());
  const int before = gpu_->synchronizations();
  for (int64_t step = 1; step <= 3; ++step) {
    for (int b = 0; b < kBuckets; ++b) {
      const size_t gathers = host_->gathered().size();
      const SyncHandle gathered = sync_->Gather(b);
      host_->AwaitGathers(gathers + 1);
      host_->ResolveGather(b, static_cast<float>(10 * step + b));
      ASSERT_TRUE(gathered.Wait(Soon()).ok());
      EXPECT_EQ(buckets_[b].param.floats()[0], 10 * step + b);
    }
    for (int b = 0; b < kBuckets; ++b) {
      std::fill_n(buckets_[b].grad.floats(), buckets_[b].grad.numel, static_cast<float>(b));
      const SyncHandle launched = sync_->Launch(Step(step), b);
      while (host_->launched().size() < static_cast<size_t>((step - 1) * kBuckets + b + 1)) {
        std::this_thread::yield();
      }
      host_->Resolve(b);
      ASSERT_TRUE(launched.Wait(Soon()).ok());
      EXPECT_EQ(grad(b), b);  // nothing came back
    }
  }
  EXPECT_EQ(gpu_->synchronizations(), before);
  EXPECT_EQ(host_->seen(), (std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST_F(StagedSyncTest, AnyCallThatFailsWhenParametersComeFailsTheGroupWithItsStatus) {
  for (const std::string method : {"StreamWait", "Copy", "Record", "RunOnHost"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    auto manual = std::make_unique<ManualSync>();
    ManualSync* const host = manual.get();
    host->OwnParameters();
    auto sync = CreateStagedSync(std::move(manual), gpu);
    ASSERT_TRUE(sync->Bind(ThreeBucketsInTwoSlots(), Soon()).ok());
    const SyncHandle handle = sync->Gather(0);
    const SyncHandle next = sync->Gather(2);  // to the same memory
    host->AwaitGathers(1);
    const absl::Status failure = absl::InternalError(absl::StrCat("no ", method));
    gpu->FailNext(method, failure);
    host->ResolveGather(0, 1);
    EXPECT_EQ(handle.Wait(Soon()), failure);
    EXPECT_EQ(next.Wait(Soon()), failure);
    EXPECT_EQ(sync->Gather(1).Wait(Soon()), failure);
    EXPECT_EQ(sync->Launch(Step(1), 0).Wait(Soon()), failure);
    EXPECT_EQ(sync->StoreParameters(0, Soon()), failure);
    EXPECT_EQ(sync->status(), failure);
    sync.reset();
    EXPECT_EQ(gpu->live_objects(), 0) << method;
  }
}

TEST_F(StagedSyncTest, AGatherThatCannotBeAskedForFailsTheGroup) {
  host_->OwnParameters();
  Bind(ThreeBucketsInTwoSlots());
  const absl::Status failure = absl::InternalError("no Record");
  gpu_->FailNext("Record", failure);
  EXPECT_EQ(sync_->Gather(0).Wait(Soon()), failure);
  EXPECT_EQ(sync_->status(), failure);
  EXPECT_EQ(host_->gathered(), std::vector<int>());
}

TEST_F(StagedSyncTest, AnErrorOfTheGpuIsNoticedThoughWhatWasGatheredNeverLeaves) {
  host_->OwnParameters();
  Bind(ThreeBucketsInTwoSlots());
  Notification go;
  gpu_->Enqueue(up(), [&] { go.WaitForNotification(); });
  const SyncHandle first = sync_->Gather(0);
  host_->AwaitGathers(1);
  host_->ResolveGather(0, 1);
  AwaitDone(first);
  const absl::Status failure = absl::InternalError("an illegal memory access");
  gpu_->FailNext("Done", failure);
  EXPECT_EQ(sync_->Gather(2).Wait(Soon()), failure);
  EXPECT_EQ(host_->gathered(), std::vector<int>{0});
  go.Notify();
  sync_.reset();
}

TEST_F(StagedSyncTest, ASyncThatIsDestroyedWhileItGathersCancelsThat) {
  host_->OwnParameters();
  Bind(ThreeBucketsInTwoSlots());
  const SyncHandle open = sync_->Gather(0);
  const SyncHandle next = sync_->Gather(2);
  sync_.reset();
  EXPECT_TRUE(absl::IsCancelled(open.Wait(Soon()))) << open.Wait(Soon());
  EXPECT_TRUE(absl::IsCancelled(next.Wait(Soon()))) << next.Wait(Soon());
}

}  // namespace
}  // namespace gradsync
