// What a group over shared GPU memory does when a rank or its GPU fails, and the order of streams;
// over fakes of the GPU.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "allreduce/ipc_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"
#include "tests/forwarding_store.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

Plan SomePlan(int ranks) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, optimizer,
                            ranks, 256);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

// A store whose news come late.
class LateStore : public ForwardingStore {
 public:
  LateStore(std::shared_ptr<KeyValueStore> store, const Notification* go)
      : ForwardingStore(std::move(store)), go_(go) {}

  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    return ForwardingStore::Watch(
        key, [go = go_, callback = std::move(callback)](absl::StatusOr<std::string> value) {
          go->WaitForNotification();
          callback(std::move(value));
        });
  }

 private:
  const Notification* const go_;
};

class IpcGroup {
 public:
  explicit IpcGroup(int ranks, absl::Duration timeout = absl::Seconds(60))
      : plan(SomePlan(ranks)), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      gpu.push_back(std::make_shared<QueuedGpu>(rank));
      IpcOptions options;
      options.group.rank = rank;
      options.group.world_size = ranks;
      options.group.run_id = "ipc";
      options.group.store = store_;
      options.group.timeout = timeout;
      options.gpu = gpu.back();
      options.hearing = absl::Seconds(60);
      options.abort_bound = absl::Seconds(60);
      options_.push_back(options);
    }
  }
  ~IpcGroup() {
    for (const std::shared_ptr<QueuedGpu>& one : gpu) {
      EXPECT_EQ(one->live_objects(), QueuedGpu::kOwnObjects);
      EXPECT_EQ(one->early_releases(), 0);
    }
  }

  IpcOptions& options(int rank) { return options_[rank]; }
  std::unique_ptr<GradientSync> Create(int rank) const {
    return *CreateIpcGradientSync(options_[rank]);
  }

  // Binds all and runs `body` on each rank's thread.
  template <typename Body>
  void Run(const Body& body) {
    RunRanks(ranks_, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = Create(rank);
      auto buckets = sync->Bind(plan, Soon());
      ASSERT_TRUE(buckets.ok()) << buckets.status();
      body(rank, *sync, *buckets);
    });
  }

  // Waits until the rank's compute stream has done what was queued there.
  void Drain(int rank) {
    Notification done;
    gpu[rank]->Enqueue(gpu[rank]->ComputeStream(), [&] { done.Notify(); });
    done.WaitForNotification();
  }

  const Plan plan;
  std::vector<std::shared_ptr<QueuedGpu>> gpu;

 private:
  const int ranks_;
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::vector<IpcOptions> options_;
};

// Until this rank has heard of the group's failure.
void AwaitFailure(GradientSync& sync) {
  const Deadline end = Soon();
  while (sync.status().ok() && !end.passed()) std::this_thread::yield();
}

TEST(IpcStreamsTest, NoThreadWaitsInAStepAndGradientsAreTakenInTheOrderOfTheStream) {
  IpcGroup group(2);
  Notification go;
  absl::BlockingCounter queued(2);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>& buckets) {
    const int synchronizations = group.gpu[rank]->synchronizations();
    float* const grad = buckets[0].grad.floats();
    group.gpu[rank]->Enqueue(group.gpu[rank]->ComputeStream(), [&, rank, grad] {
      go.WaitForNotification();
      grad[17] = static_cast<float>(rank + 1);
    });
    // Three steps are queued while the first gradient is still computed.
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_EQ(RunStep(sync, group.plan, Step(step)), absl::OkStatus());
    }
    EXPECT_EQ(group.gpu[rank]->synchronizations(), synchronizations);
    queued.DecrementCount();
    if (rank == 0) {
      queued.Wait();
      go.Notify();
    }
    group.Drain(rank);
    EXPECT_EQ(grad[17], 1.5f);
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
  });
}

// A rank may write its gradient again when its compute stream has come to the end of the exchange:
// nobody reads it then.
TEST(IpcStreamsTest, AGradientIsNotOverwrittenBeforeAllOwnersHaveReadIt) {
  IpcGroup group(3);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>& buckets) {
    float* const grad = buckets[0].grad.floats();
    const int64_t numel = buckets[0].grad.numel;
    bool right = true;
    for (int64_t step = 1; step <= 50; ++step) {
      const GpuStream compute = group.gpu[rank]->ComputeStream();
      group.gpu[rank]->Enqueue(compute, [=] {
        for (int64_t i = 0; i < numel; ++i) grad[i] = static_cast<float>(3 * (step + rank * i));
      });
      ASSERT_EQ(RunStep(sync, group.plan, Step(step)), absl::OkStatus());
      group.gpu[rank]->Enqueue(compute, [=, &right] {
        for (int64_t i = 0; i < numel; ++i) {
          right = right && grad[i] == static_cast<float>(3 * (step + i));
        }
      });
    }
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
    group.Drain(rank);
    EXPECT_TRUE(right);
  });
}

// The last rank of `group` computes on and on in step 2; `check` of what the others are told.
void KeepLastRankAway(IpcGroup& group, const std::function<void(const absl::Status&)>& check) {
  const int last = group.plan.world_size() - 1;
  absl::BlockingCounter told(last);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    ASSERT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
    if (rank == last) {
      told.Wait();
      AwaitFailure(sync);
      return;
    }
    EXPECT_EQ(RunStep(sync, group.plan, Step(2)), absl::OkStatus());  // is queued
    AwaitFailure(sync);
    check(sync.status());
    told.DecrementCount();
  });
}

TEST(IpcFailureTest, ARankThatNeverComesIsNamedByTheOthers) {
  IpcGroup group(3, absl::Seconds(2));
  KeepLastRankAway(group, [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "bucket 0 of step 2: not done 2s")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 2 has not come to it, but is 1 behind"))
        << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "; rank 0")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "; rank 1")) << status;
  });
}

// They were called by their places in the part, and other ranks of the job have these numbers.
TEST(IpcFailureTest, RanksOfAPartOfAJobHaveTheirNumbersInTheJob) {
  IpcGroup group(2, absl::Seconds(2));
  for (int rank : {0, 1}) {
    group.options(rank).group.part = "stage1";
    group.options(rank).group.ranks_of_job = {1, 3};
  }
  KeepLastRankAway(group, [](const absl::Status& status) {
    EXPECT_TRUE(absl::StrContains(status.message(), "cuda_ipc at rank 1, bucket 0 of step 2"))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "; rank 3 has not come to it")) << status;
  });
}

// A long backward is no failure: the clock runs when the own gradient is there.
TEST(IpcFailureTest, ARankWaitsForItsOwnGradientAsLongAsThatTakes) {
  Notification go;  // outlives what waits for it on a stream
  IpcGroup group(1, absl::Milliseconds(50));
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    group.gpu[0]->Enqueue(group.gpu[0]->ComputeStream(), [&] { go.WaitForNotification(); });
    EXPECT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
    for (int i = 0; i < 10; ++i) GiveOthersTime();
    EXPECT_EQ(sync.status(), absl::OkStatus());
    go.Notify();
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(IpcFailureTest, AnAbortFreesStreamsThatWaitAndIsNoSuccess) {
  IpcGroup group(2);
  Notification launched;
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 0) {
      launched.WaitForNotification();
      return sync.Abort(absl::DataLossError("disk on fire"));
    }
    const SyncHandle handle = sync.Launch(Step(1), 0);
    EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());  // is queued, and waits for rank 0
    launched.Notify();
    group.Drain(1);
    const absl::Status status = handle.Wait(Soon());
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "disk on fire")) << status;
    EXPECT_EQ(sync.status(), status);
    EXPECT_FALSE(sync.Launch(Step(2), 0).Wait(Soon()).ok());
    EXPECT_FALSE(sync.Shutdown(Soon()).ok());
  });
}

// A freed stream goes on with nonsense, and writes it into others' memory: not before they know.
TEST(IpcFailureTest, NoStreamIsFreedBeforeTheOtherRanksHaveHeardOfTheFailure) {
  Notification heard;
  IpcGroup group(2);
  group.options(1).group.store = std::make_shared<LateStore>(group.options(1).group.store, &heard);
  Notification over;
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    if (rank == 1) return over.WaitForNotification();
    const SyncHandle handle = sync.Launch(Step(1), 0);
    EXPECT_EQ(handle.Wait(Soon()), absl::OkStatus());  // is queued, and waits for rank 1
    std::atomic<bool> freed = false;
    group.gpu[0]->Enqueue(group.gpu[0]->ComputeStream(), [&] { freed = true; });
    sync.Abort(absl::DataLossError("disk on fire"));
    for (int i = 0; i < 5; ++i) GiveOthersTime();
    EXPECT_FALSE(freed);
    heard.Notify();
    AwaitFailure(sync);
    group.Drain(0);
    EXPECT_TRUE(freed);
    over.Notify();
  });
}

TEST(IpcFailureTest, ARankWhoseGpuExportsNothingFailsEveryRank) {
  IpcGroup group(3);
  group.gpu[1]->FailNext("ExportMemory", absl::InternalError("cudaErrorNotSupported"));
  RunRanks(3, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_FALSE(bound.ok());
    EXPECT_TRUE(absl::StrContains(bound.message(), "cudaErrorNotSupported")) << bound;
  });
}

TEST(IpcFailureTest, ARankThatCannotMapAnothersMemoryFailsEveryRank) {
  for (const char* const call : {"ImportMemory", "RegisterHost", "FlagOnDevice"}) {
    IpcGroup group(3);
    group.gpu[2]->FailNext(call, absl::InternalError("cudaErrorX"));
    RunRanks(3, [&](int rank) {
      const std::unique_ptr<GradientSync> sync = group.Create(rank);
      const absl::Status bound = sync->Bind(group.plan, Soon()).status();
      EXPECT_EQ(bound.code(), rank == 2 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
          << bound;
      EXPECT_TRUE(absl::StrContains(bound.message(), "cudaErrorX")) << bound;
    });
  }
}

TEST(IpcFailureTest, AnErrorOfTheGpuInAStepFailsTheGroup) {
  for (const char* const call : {"WriteFlag", "WaitFlag", "FoldMean", "Record", "StreamWait"}) {
    IpcGroup group(2);
    group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
      if (rank == 1) group.gpu[1]->FailNext(call, absl::InternalError("cudaErrorX"));
      RunStep(sync, group.plan, Step(1)).IgnoreError();
      AwaitFailure(sync);
      const absl::Status status = sync.status();
      EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
          << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "cudaErrorX")) << status;
    });
  }
}

// What the compute stream still does can take long: nobody waits for it, and its memory stays.
TEST(IpcFailureTest, AStreamThatIsNotDoneHoldsUpNobodyAndKeepsItsMemory) {
  Notification go;  // outlives what waits for it on a stream
  IpcGroup group(1);
  group.options(0).abort_bound = absl::Milliseconds(20);
  group.Run([&](int, GradientSync& sync, std::vector<GradBucket>&) {
    group.gpu[0]->Enqueue(group.gpu[0]->ComputeStream(), [&] { go.WaitForNotification(); });
    EXPECT_EQ(RunStep(sync, group.plan, Step(1)), absl::OkStatus());
    sync.Abort(absl::DataLossError("disk on fire"));
    AwaitFailure(sync);
    EXPECT_TRUE(absl::IsDataLoss(sync.status()));
    EXPECT_TRUE(absl::StrContains(sync.status().message(), "left to a thread of its own"));
  });
  EXPECT_GT(group.gpu[0]->live_objects(), QueuedGpu::kOwnObjects);
  go.Notify();
  while (group.gpu[0]->live_objects() > QueuedGpu::kOwnObjects) std::this_thread::yield();
}

TEST(IpcFailureTest, RanksThatDisagreeOnWhoFoldsAreFoundByBind) {
  IpcGroup group(2);
  group.options(1).servers = true;
  group.options(1).owners = 1;
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const absl::Status bound = sync->Bind(group.plan, Soon()).status();
    EXPECT_TRUE(absl::StrContains(bound.message(), "a ring")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "servers on 1 ranks")) << bound;
  });
}

TEST(IpcFailureTest, OptionsOutOfRangeAreRefused) {
  IpcGroup group(2);
  IpcOptions options = group.options(0);
  options.group.rank = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateIpcGradientSync(options).status()));
  options = group.options(0);
  options.owners = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(CreateIpcGradientSync(options).status()));
  options = group.options(0);
  options.gpu = nullptr;
  const absl::Status status = CreateIpcGradientSync(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--config=cuda")) << status;
}

}  // namespace
}  // namespace gradsync
