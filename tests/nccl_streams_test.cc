// What a group over NCCL does with streams; over the fakes.

#include <algorithm>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/gpu_resources.h"
#include "gtest/gtest.h"
#include "tests/nccl_group.h"

namespace gradsync {
namespace {

bool AllAre(const FlatBuffer& flat, float value, int64_t numel) {
  const float* data = flat.floats();
  return std::all_of(data, data + numel, [&](float x) { return x == value; });
}

TEST(NcclStreamsTest, WorkBeginsAfterTheCallersStreamAndComesBeforeItsLaterWork) {
  NcclGroup group(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>& buckets) {
    FakeGpu& gpu = *group.gpu[rank];
    const FlatBuffer grad = buckets[0].grad;
    const auto event = *ScopedEvent::Create(group.gpu[rank]);
    Notification go;
    float* const data = grad.floats();
    // What backward has queued and not computed yet.
    gpu.Enqueue(gpu.ComputeStream(), [&] {
      go.WaitForNotification();
      std::fill(data, data + 3000, static_cast<float>(rank + 1));
    });
    const std::vector<SyncHandle> handles = LaunchStep(sync, 2, Step(1));
    // Resolved and waited for while nothing has run, as the handles say nothing of the GPU.
    EXPECT_EQ(WaitForAll(handles), absl::OkStatus());
    bool right = false;
    gpu.Enqueue(gpu.ComputeStream(), [&] { right = AllAre(grad, 1.5f, 3000); });
    ASSERT_TRUE(gpu.Record(event.get(), gpu.ComputeStream()).ok());
    EXPECT_FALSE(*gpu.Done(event.get()));
    EXPECT_TRUE(AllAre(grad, 0, 3000));
    go.Notify();
    EXPECT_EQ(gpu.synchronizations(), 0);
    ASSERT_TRUE(gpu.Synchronize(event.get()).ok());
    EXPECT_TRUE(right);
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(NcclStreamsTest, NoStepWaitsForTheGpuAndNoEventIsMadeInTheLongRun) {
  struct Case {
    UpdateSite site;
    int owners;
    double max_norm;
  };
  for (const Case& c : {Case{UpdateSite::kWorker, 0, 0}, Case{UpdateSite::kOwner, 0, 0},
                        Case{UpdateSite::kOwner, 0, 0.5}, Case{UpdateSite::kWorker, 2, 0},
                        Case{UpdateSite::kOwner, 3, 0.5}}) {
    const double max_norm = c.max_norm;
    NcclGroup group(3, c.site, absl::Seconds(60), c.owners);
    group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
      FakeGpu& gpu = *group.gpu[rank];
      // A caller that comes no further ahead of its GPU than a step, as one that reads its loss,
      // and every 10 steps not at all.
      constexpr int kSteps = 10, kBatches = 20;
      const auto run_batch = [&](int batch) {
        for (int64_t s = batch * kSteps + 1; s <= (batch + 1) * kSteps; ++s) {
          StepOptions step = Step(s);
          step.max_norm = max_norm;
          ASSERT_EQ(RunStep(sync, group.plan, step), absl::OkStatus());
          const auto event = *ScopedEvent::Create(group.gpu[rank]);
          ASSERT_TRUE(gpu.Record(event.get(), gpu.ComputeStream()).ok());
          while (!*gpu.Done(event.get())) std::this_thread::yield();
        }
        ASSERT_EQ(sync.BroadcastParameters(Soon()), absl::OkStatus());
      };
      const int events = gpu.calls("CreateEvent");
      const int waits = gpu.synchronizations();  // by Bind()
      run_batch(0);
      const int allocations = gpu.calls("AllocateDevice") + gpu.calls("AllocatePinned");
      for (int batch = 1; batch < kBatches; ++batch) run_batch(batch);
      // As many as can be in use at once, whoever is slow: two for each bucket of a batch, and
      // for the broadcast. And the caller's.
      const int in_use = 2 * (kSteps * static_cast<int>(group.plan.buckets().size()) + 1);
      EXPECT_LE(gpu.calls("CreateEvent") - events, in_use + kSteps * kBatches);
      EXPECT_EQ(gpu.calls("AllocateDevice") + gpu.calls("AllocatePinned"), allocations);
      EXPECT_EQ(gpu.synchronizations(), waits);
      EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
      EXPECT_EQ(gpu.synchronizations(), waits);
    });
  }
}

TEST(NcclStreamsTest, NothingIsGivenBackWhileItIsUsed) {
  Notification go;
  NcclGroup group(1);
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    group.gpu[0]->Enqueue(group.gpu[0]->ComputeStream(), [&] { go.WaitForNotification(); });
    EXPECT_EQ(WaitForAll(LaunchStep(sync, 2, Step(1))), absl::OkStatus());
    absl::Status left = absl::UnknownError("");
    std::thread leaver([&] { left = sync.Shutdown(Soon()); });
    GiveOthersTime();
    EXPECT_EQ(group.nccl[0]->calls("Deregister"), 0);
    EXPECT_EQ(group.nccl[0]->calls("Finalize"), 0);
    go.Notify();
    leaver.join();
    EXPECT_EQ(left, absl::OkStatus());
    EXPECT_EQ(group.nccl[0]->calls("Destroy"), 1);
  });
}

// ncclMemFree() does not wait, so the last tensor unmapped what the caller's kernels still used.
TEST(NcclStreamsTest, BucketsGoAfterWhatTheCallerHasQueuedOnThem) {
  Notification go;
  NcclGroup group(1);
  FakeGpu& gpu = *group.gpu[0];
  std::vector<GradBucket> kept;
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>& buckets) {
    kept = std::move(buckets);
    EXPECT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
  });
  const float* const data = kept[0].param.floats();
  gpu.Enqueue(gpu.ComputeStream(), [&] { go.WaitForNotification(); }, {{data, sizeof(float)}});
  std::thread owner([&] { kept.clear(); });
  GiveOthersTime();
  EXPECT_EQ(gpu.live_objects(), QueuedGpu::kOwnObjects + 1);
  go.Notify();
  owner.join();
  EXPECT_TRUE(gpu.TakeMisuses().empty());
}

TEST(NcclStreamsTest, ALaunchBeforeTheStepBeforeIsQueuedIsRefused) {
  NcclGroup group(1);
  group.nccl[0]->Hang("AllReduce");
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    LaunchStep(sync, 2, Step(1));
    group.nccl[0]->AwaitCalls("AllReduce", 1);
    const SyncHandle early = sync.Launch(Step(2), 0);
    group.nccl[0]->Release();
    EXPECT_TRUE(absl::IsFailedPrecondition(early.Wait(Soon()))) << early.Wait(Soon());
  });
}

}  // namespace
}  // namespace gradsync
