// What a group over NCCL does with streams, and when a rank, NCCL or a GPU fails; over the fakes.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/blocking_counter.h"
#include "allreduce/fake_nccl.h"
#include "allreduce/nccl_gradient_sync.h"
#include "base/mutex.h"
#include "gpu/fake_gpu.h"
#include "gpu/gpu_resources.h"
#include "gtest/gtest.h"
#include "links/in_memory_store.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

Plan SomePlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, optimizer,
                            world_size, 256);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

// A notification that ThreadSanitizer sees.
class Signal {
 public:
  void Notify() {
    MutexLock lock(&mutex_);
    set_ = true;
    changed_.SignalAll();
  }
  bool HasBeenNotified() const {
    MutexLock lock(&mutex_);
    return set_;
  }
  void Wait() const {
    MutexLock lock(&mutex_);
    while (!set_) changed_.Wait(&mutex_);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// A GPU on which LibTorch, too, works on a stream that is not the caller.
class QueuedGpu : public FakeGpu {
 public:
  explicit QueuedGpu(int device) : FakeGpu(device), compute_(*CreateStream()) {}
  ~QueuedGpu() override { DestroyStream(compute_); }
  GpuStream ComputeStream() override { return compute_; }

 private:
  const GpuStream compute_;
};

constexpr int kOwnObjects = 1;  // of a QueuedGpu: its stream

class Group {
 public:
  explicit Group(int ranks, UpdateSite site = UpdateSite::kWorker,
                 absl::Duration timeout = absl::Seconds(60))
      : plan(SomePlan(ranks)), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      gpu.push_back(std::make_shared<QueuedGpu>(rank));
      nccl.push_back(std::make_shared<FakeNccl>(network_, gpu.back()));
      NcclOptions options;
      options.group.rank = rank;
      options.group.world_size = ranks;
      options.group.run_id = "nccl";
      options.group.store = store_;
      options.group.timeout = timeout;
      options.update_site = site;
      options.gpu = gpu.back();
      options.nccl = nccl.back();
      options.abort_bound = absl::Seconds(60);
      options.grace = absl::Seconds(60);
      options_.push_back(options);
    }
  }
  ~Group() {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (const std::string& misuse : nccl[rank]->misuses()) ADD_FAILURE() << misuse;
      EXPECT_EQ(nccl[rank]->live_communicators(), 0);
      EXPECT_EQ(gpu[rank]->live_objects(), kOwnObjects);
    }
  }

  NcclOptions& options(int rank) { return options_[rank]; }
  std::unique_ptr<GradientSync> Create(int rank) const {
    return *CreateNcclGradientSync(options_[rank]);
  }

  // Binds all and runs `body` on each rank's thread.
  void Run(const std::function<void(int, GradientSync&, std::vector<GradBucket>&)>& body) {
    RunRanks(ranks_, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = Create(rank);
      auto buckets = sync->Bind(plan, Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      body(rank, *sync, *buckets);
    });
  }

  const Plan plan;
  std::vector<std::shared_ptr<QueuedGpu>> gpu;
  std::vector<std::shared_ptr<FakeNccl>> nccl;

 private:
  const int ranks_;
  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::vector<NcclOptions> options_;
};

bool AllAre(const at::Tensor& flat, float value, int64_t numel) {
  const float* data = flat.data_ptr<float>();
  return std::all_of(data, data + numel, [&](float x) { return x == value; });
}

TEST(NcclStreamsTest, WorkBeginsAfterTheCallersStreamAndComesBeforeItsLaterWork) {
  Group group(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>& buckets) {
    FakeGpu& gpu = *group.gpu[rank];
    const at::Tensor grad = buckets[0].grad;
    const auto event = *ScopedEvent::Create(group.gpu[rank]);
    Signal go;
    float* const data = grad.data_ptr<float>();
    // What backward has queued and not computed yet.
    gpu.Enqueue(gpu.ComputeStream(), [&] {
      go.Wait();
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
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const double max_norm : {0.0, 0.5}) {
      Group group(3, site);
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
        run_batch(0);
        const int allocations = gpu.calls("AllocateDevice") + gpu.calls("AllocatePinned");
        for (int batch = 1; batch < kBatches; ++batch) run_batch(batch);
        // As many as can be in use at once, whoever is slow: two for each bucket of a batch, and
        // for the broadcast. And the caller's.
        const int in_use = 2 * (kSteps * static_cast<int>(group.plan.buckets().size()) + 1);
        EXPECT_LE(gpu.calls("CreateEvent") - events, in_use + kSteps * kBatches);
        EXPECT_EQ(gpu.calls("AllocateDevice") + gpu.calls("AllocatePinned"), allocations);
        EXPECT_EQ(gpu.synchronizations(), 0);
        EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
        EXPECT_EQ(gpu.synchronizations(), 0);
      });
    }
  }
}

TEST(NcclStreamsTest, ALaunchBeforeTheStepBeforeIsQueuedIsRefused) {
  Group group(1);
  group.nccl[0]->Hang("AllReduce");
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    LaunchStep(sync, 2, Step(1));
    group.nccl[0]->AwaitCalls("AllReduce", 1);
    const SyncHandle early = sync.Launch(Step(2), 0);
    group.nccl[0]->Release();
    EXPECT_TRUE(absl::IsFailedPrecondition(early.Wait(Soon()))) << early.Wait(Soon());
  });
}

TEST(NcclFailureTest, ARefusedInitFailsEveryRank) {
  Group group(3);
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
  Group group(3);
  group.nccl[0]->FailNext("GetUniqueId", NcclResult::kSystemError);
  RunRanks(3, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_FALSE(bound.ok());
    EXPECT_TRUE(absl::StrContains(bound.message(), "rank 0")) << bound;
  });
}

TEST(NcclFailureTest, AnInitThatNeverCompletesEndsAtTheDeadline) {
  Group group(2);
  group.nccl[1]->NeverFinishInit();
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    // Rank 1's own deadline is the nearer one, so that it is the first to fail.
    const absl::Duration patience = rank == 1 ? absl::Milliseconds(200) : absl::Seconds(60);
    const absl::Status bound = sync->Bind(group.plan, absl::Now() + patience).status();
    EXPECT_EQ(bound.code(),
              rank == 1 ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted)
        << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "NCCL at rank 1")) << bound;
  });
}

TEST(NcclFailureTest, MemoryThatIsShortFailsEveryRank) {
  Group group(2);
  group.gpu[1]->FailNext("AllocateDevice", absl::ResourceExhaustedError("full"));
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_FALSE(bound.ok());
    EXPECT_TRUE(absl::StrContains(bound.message(), "ncclMemAlloc")) << bound;
  });
}

TEST(NcclFailureTest, RanksWithTheUpdateAtDifferentSitesAreFoundByBind) {
  Group group(2);
  group.options(1).update_site = UpdateSite::kOwner;
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(bound)) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "owners")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "workers")) << bound;
  });
}

// Until this rank has heard of the group's failure.
void AwaitFailure(GradientSync& sync) {
  const absl::Time end = Soon();
  while (sync.status().ok() && absl::Now() < end) std::this_thread::yield();
}

// Steps until one fails: what fails on the GPU is told by a later call.
absl::Status RunUntilFailure(GradientSync& sync, const Group& group, int64_t first) {
  const absl::Time end = Soon();
  for (int64_t s = first; absl::Now() < end; ++s) {
    const absl::Status status = RunStep(sync, group.plan, Step(s));
    if (!status.ok()) return status;
    AwaitFailure(sync);
  }
  return absl::OkStatus();
}

TEST(NcclFailureTest, AnAsynchronousErrorFailsEveryRankAfterItsHandlesWereResolved) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    Group group(3, site);
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

TEST(NcclFailureTest, ASilentRankIsNamedByTheOthers) {
  Group group(3, UpdateSite::kWorker, absl::Seconds(2));
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

TEST(NcclFailureTest, AHandleResolvedBeforeTheFailureTellsItToo) {
  Group group(2);
  Signal aborted;
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 1) {
      aborted.Wait();
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

TEST(NcclFailureTest, AnAbortThatHangsIsReportedAndHoldsUpNobody) {
  Group group(2);
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
  EXPECT_GT(group.gpu[0]->live_objects(), kOwnObjects);
  group.nccl[0]->Release();
  while (group.gpu[0]->live_objects() > kOwnObjects) std::this_thread::yield();
  EXPECT_EQ(group.gpu[1]->live_objects(), kOwnObjects);
}

TEST(NcclFailureTest, AnErrorOfTheGpuFailsTheGroup) {
  Group group(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 1) group.gpu[1]->FailNext("ScaleTwice", absl::InternalError("cudaErrorX"));
    const absl::Status status = RunUntilFailure(sync, group, 1);
    EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cudaErrorX")) << status;
  });
}

TEST(NcclFailureTest, OptionsOutOfRangeAreRefused) {
  Group group(2);
  NcclOptions options = group.options(0);
  options.group.rank = 2;
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
