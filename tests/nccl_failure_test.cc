// What a group over NCCL does when a rank, NCCL or a GPU fails; over the fakes.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/blocking_counter.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "gtest/gtest.h"
#include "tests/nccl_group.h"

namespace gradsync {
namespace {

TEST(NcclFailureTest, ARefusedInitFailsEveryRank) {
  NcclGroup group(3);
  group.nccl[1]->FailNext("InitRank", NcclResult::kInvalidUsage);
  RunRanks(3, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_EQ(bound.code(), rank == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
        << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "NCCL at rank 1")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "ncclInvalidUsage")) << bound;
  });
}

TEST(NcclFailureTest, WithoutAUniqueIdNobodyWaits) {
  NcclGroup group(3);
  group.nccl[0]->FailNext("GetUniqueId", NcclResult::kSystemError);
  RunRanks(3, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_FALSE(bound.ok());
    EXPECT_TRUE(absl::StrContains(bound.message(), "rank 0")) << bound;
  });
}

TEST(NcclFailureTest, AnInitThatNeverCompletesEndsAtTheDeadline) {
  NcclGroup group(2);
  group.nccl[1]->NeverFinishInit();
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    // Rank 1's own deadline is the nearer one, so that it is the first to fail.
    const absl::Duration patience = rank == 1 ? absl::Milliseconds(200) : absl::Seconds(60);
    const absl::Status bound = sync->Bind(group.plan, Deadline::In(patience)).status();
    EXPECT_EQ(bound.code(),
              rank == 1 ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted)
        << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "NCCL at rank 1")) << bound;
  });
}

TEST(NcclFailureTest, MemoryThatIsShortFailsEveryRank) {
  NcclGroup group(2);
  group.gpu[1]->FailNext("AllocateDevice", absl::ResourceExhaustedError("full"));
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_FALSE(bound.ok());
    EXPECT_TRUE(absl::StrContains(bound.message(), "ncclMemAlloc")) << bound;
  });
}

TEST(NcclFailureTest, RanksWithTheUpdateAtDifferentSitesAreFoundByBind) {
  NcclGroup group(2);
  group.options(1).update_site = UpdateSite::kOwner;
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(bound)) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "owners")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "workers")) << bound;
  });
}

TEST(NcclFailureTest, RanksWithOtherNumbersOfServersAreFoundByBind) {
  for (const int owners : {0, 1}) {
    NcclGroup group(2, UpdateSite::kWorker, absl::Seconds(60), owners);
    group.options(1).owners = 2;
    RunRanks(2, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = group.Create(rank);
      const absl::Status bound = sync->Bind(group.plan, Soon()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(bound)) << bound;
      EXPECT_TRUE(absl::StrContains(bound.message(), "2 servers")) << bound;
      EXPECT_TRUE(absl::StrContains(bound.message(), owners == 0 ? "a ring" : "1 servers"))
          << bound;
    });
  }
}

// Until this rank has heard of the group's failure.
void AwaitFailure(GradientSync& sync) {
  const Deadline end = Soon();
  while (sync.status().ok() && !end.passed()) std::this_thread::yield();
}

// Steps until one fails: what fails on the GPU is told by a later call.
absl::Status RunUntilFailure(GradientSync& sync, const NcclGroup& group, int64_t first) {
  const Deadline end = Soon();
  for (int64_t s = first; !end.passed(); ++s) {
    const absl::Status status = RunStep(sync, group.plan, Step(s));
    if (!status.ok()) return status;
    AwaitFailure(sync);
  }
  return absl::OkStatus();
}

TEST(NcclFailureTest, AnAsynchronousErrorFailsEveryRankAfterItsHandlesWereResolved) {
  for (const auto& [site, owners] :
       {std::make_pair(UpdateSite::kWorker, 0), std::make_pair(UpdateSite::kOwner, 0),
        std::make_pair(UpdateSite::kWorker, 1), std::make_pair(UpdateSite::kOwner, 3)}) {
    NcclGroup group(3, site, absl::Seconds(60), owners);
    absl::BlockingCounter stepped(3);
    group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
      ASSERT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
      stepped.DecrementCount();
      if (rank == 1) {
        stepped.Wait();
        group.nccl[1]->Break(NcclResult::kRemoteError, "connection closed by peer");
      }
      const absl::Status status = RunUntilFailure(sync, group, 2);
      EXPECT_EQ(status.code(),
                rank == 1 ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted)
          << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "NCCL at rank 1")) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "connection closed by peer")) << status;
      EXPECT_EQ(sync.status(), status);
      EXPECT_FALSE(sync.Launch(Step(99), 0).Wait(Soon()).ok());
      EXPECT_FALSE(sync.Shutdown(Soon()).ok());
      EXPECT_EQ(group.nccl[rank]->calls("Abort"), 1);
    });
  }
}

class NcclSilentRankTest : public testing::TestWithParam<int> {};

TEST_P(NcclSilentRankTest, IsNamedByTheOthers) {
  NcclGroup group(3, UpdateSite::kWorker, absl::Seconds(2), /*owners=*/GetParam());
  absl::BlockingCounter told(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    ASSERT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
    if (rank == 2) {  // computes on and on
      told.Wait();
      AwaitFailure(sync);
      EXPECT_FALSE(sync.status().ok());
      return;
    }
    const absl::Status status = RunUntilFailure(sync, group, 2);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "bucket 0 of step 2: not done")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 2 has come to bucket 1 of step 1"))
        << status;
    told.DecrementCount();
  });
}

INSTANTIATE_TEST_SUITE_P(RingAndServers, NcclSilentRankTest, testing::Values(0, 1, 3));

TEST(NcclFailureTest, AHandleResolvedBeforeTheFailureTellsItToo) {
  NcclGroup group(2);
  Notification aborted;
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 1) {
      aborted.WaitForNotification();
      return;
    }
    const SyncHandle handle = sync.Launch(Step(1), 0);
    EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());
    sync.Abort(absl::DataLossError("disk on fire"));
    EXPECT_TRUE(absl::IsDataLoss(handle.Wait(Soon())));
    EXPECT_TRUE(absl::IsDataLoss(sync.status()));
    aborted.Notify();
  });
}

TEST(NcclFailureTest, WorkThatAnAbortEndedIsNoSuccess) {
  Notification go;  // outlives what waits for it on a stream
  NcclGroup group(2);
  Notification launched;
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 0) {
      launched.WaitForNotification();
      return sync.Abort(absl::DataLossError("disk on fire"));
    }
    const std::vector<SyncHandle> handles = LaunchStep(sync, 2, Step(1));
    while (!handles[1].done()) std::this_thread::yield();
    // Keeps the abort from being over when the collectives are.
    group.gpu[1]->Enqueue(group.gpu[1]->streams()[1], [&] { go.WaitForNotification(); });
    launched.Notify();
    group.nccl[1]->AwaitCalls("Abort", 1);
    absl::Status status = absl::UnknownError("");
    std::thread waiter([&] { status = handles[0].Wait(Soon()); });
    GiveOthersTime();
    go.Notify();
    waiter.join();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
  });
}

TEST(NcclFailureTest, AFailureEndsAShutdownThatWaitsForTheGpu) {
  Notification go;  // outlives what waits for it on a stream
  NcclGroup group(1);
  group.nccl[0]->Hang("Abort");
  group.options(0).abort_bound = absl::Milliseconds(20);
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    group.gpu[0]->Enqueue(group.gpu[0]->ComputeStream(), [&] { go.WaitForNotification(); });
    EXPECT_EQ(WaitForAll(LaunchStep(sync, 2, Step(1))), absl::OkStatus());
    absl::Status left;
    std::thread leaver([&] { left = sync.Shutdown(Deadline::Never()); });
    GiveOthersTime();
    sync.Abort(absl::DataLossError("disk on fire"));
    leaver.join();
    EXPECT_TRUE(absl::IsDataLoss(left)) << left;
  });
  go.Notify();
  group.nccl[0]->Release();
  while (group.gpu[0]->live_objects() > QueuedGpu::kOwnObjects) std::this_thread::yield();
}

TEST(NcclFailureTest, AnAbortThatHangsIsReportedAndHoldsUpNobody) {
  NcclGroup group(2);
  group.nccl[0]->Hang("Abort");
  group.options(0).abort_bound = absl::Milliseconds(20);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 0) sync.Abort(absl::DataLossError("disk on fire"));
    const absl::Status status = RunUntilFailure(sync, group, 1);
    EXPECT_EQ(status.code(), rank == 0 ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted)
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "disk on fire")) << status;
    EXPECT_EQ(absl::StrContains(status.message(), "ncclCommAbort"), rank == 0) << status;
  });
  // The backend is gone, but not what a kernel might still write to.
  EXPECT_GT(group.gpu[0]->live_objects(), QueuedGpu::kOwnObjects);
  group.nccl[0]->Release();
  while (group.gpu[0]->live_objects() > QueuedGpu::kOwnObjects) std::this_thread::yield();
  EXPECT_EQ(group.gpu[1]->live_objects(), QueuedGpu::kOwnObjects);
}

void AwaitNothingLeft(const FakeGpu& gpu) {
  while (gpu.live_objects() > QueuedGpu::kOwnObjects) std::this_thread::yield();
}

// An abort freed the pinned notes of the owners as soon as NCCL had returned, on the belief that
// destroying a stream waits for it.
TEST(NcclFailureTest, WhatTheStreamUsesOutlivesAnAbort) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    Notification go;  // outlives what waits for it on a stream
    NcclGroup group(1, site);
    FakeGpu& gpu = *group.gpu[0];
    group.options(0).abort_bound = absl::Milliseconds(20);
    group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
      gpu.Enqueue(gpu.ComputeStream(), [&] { go.WaitForNotification(); });
      StepOptions step = Step(1);
      step.max_norm = 1;
      EXPECT_EQ(WaitForAll(LaunchStep(sync, 2, step)), absl::OkStatus());
      sync.Abort(absl::DataLossError("disk on fire"));
      AwaitFailure(sync);
      const std::string why(sync.status().message());
      EXPECT_TRUE(absl::StrContains(why, "has returned, but the stream is not idle")) << why;
    });
    EXPECT_EQ(group.nccl[0]->live_communicators(), 0);  // the abort itself did not hang
    EXPECT_GT(gpu.live_objects(), QueuedGpu::kOwnObjects);
    EXPECT_TRUE(gpu.TakeMisuses().empty());
    go.Notify();
    AwaitNothingLeft(gpu);
  }
}

// Holds up its caller in ScaleTwice(), where a rank's communication thread is after a collective.
class SlowGpu : public QueuedGpu {
 public:
  absl::Status ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) override {
    called.Notify();
    go.WaitForNotification();
    return QueuedGpu::ScaleTwice(x, n, a, b, stream);
  }

  Notification called;
  Notification go;
};

TEST(NcclFailureTest, WhatIsQueuedAfterAnAbortIsWaitedForToo) {
  Notification go;  // outlives what waits for it on a stream
  const auto gpu = std::make_shared<SlowGpu>();
  const auto nccl = std::make_shared<FakeNccl>(std::make_shared<FakeNcclNetwork>(), gpu);
  {
    NcclOptions options;
    options.group.world_size = 1;
    options.update_site = UpdateSite::kOwner;
    options.gpu = gpu;
    options.nccl = nccl;
    options.abort_bound = absl::Milliseconds(200);
    const std::unique_ptr<GradientSync> sync = *CreateNcclGradientSync(options);
    ASSERT_TRUE(sync->Bind(SomePlan(1), Soon()).ok());
    StepOptions step = Step(1);
    step.max_norm = 1;
    const SyncHandle handle = sync->Launch(step, 0);
    gpu->called.WaitForNotification();
    sync->Abort(absl::DataLossError("disk on fire"));
    EXPECT_TRUE(absl::IsDataLoss(handle.Wait(Soon())));  // its own thread has let go of the device
    gpu->Enqueue(gpu->streams()[1], [&] { go.WaitForNotification(); });
    gpu->go.Notify();
  }
  EXPECT_TRUE(gpu->TakeMisuses().empty());
  go.Notify();
  AwaitNothingLeft(*gpu);
}

TEST(NcclFailureTest, AnErrorOfTheGpuFailsTheGroup) {
  NcclGroup group(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 1) group.gpu[1]->FailNext("ScaleTwice", absl::InternalError("cudaErrorX"));
    const absl::Status status = RunUntilFailure(sync, group, 1);
    EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cudaErrorX")) << status;
  });
}

TEST(NcclFailureTest, OptionsOutOfRangeAreRefused) {
  NcclGroup group(2);
  NcclOptions options = group.options(0);
  options.group.rank = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateNcclGradientSync(options).status()));
  options = group.options(0);
  options.owners = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateNcclGradientSync(options).status()));
  options.group.world_size = 65;  // more than a fold on a GPU adds
  EXPECT_TRUE(absl::IsInvalidArgument(CreateNcclGradientSync(options).status()));
  options = group.options(0);
  options.group.store = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateNcclGradientSync(options).status()));
  options = group.options(0);
  options.nccl = nullptr;
  const absl::Status status = CreateNcclGradientSync(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--config=cuda")) << status;
}

}  // namespace
}  // namespace gradsync
