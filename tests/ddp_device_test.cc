// DdpEngine over buckets in the memory of a GPU, the fake one, which has the host's
// arithmetic: the bits must be those of the host.

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/gpu/fake_gpu.h"
#include "core/group/key_value_store.h"
#include "core/sync/local_sync.h"
#include "core/sync/staged_sync.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/tiny_job.h"

namespace gradsync {
namespace {

constexpr int kSteps = 4;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

struct Case {
  UpdateSite site;
  OptimizerKind kind;
  double max_norm;
  int world_size;
};

std::string Name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return absl::StrCat(c.world_size, c.site == UpdateSite::kOwner ? "Owner" : "Worker",
                      c.kind == OptimizerKind::kSgd ? "Sgd" : "AdamW",
                      c.max_norm > 0 ? "Clipped" : "");
}

DdpEngineOptions OptionsOf(const Case& c) {
  DdpEngineOptions options;
  options.optimizer = {c.kind, {{}}};
  options.optimizer.groups[0].momentum = 0.9;
  options.optimizer.groups[0].weight_decay = 0.01;
  options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
  return options;
}

absl::Status Train(DdpEngine& ddp, TinyModule& module, const Case& c, int rank, int64_t first,
                   int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    GS_RETURN_IF_ERROR(ddp.BeginStep({step, 0.1, c.max_norm, 1}));
    module.Loss(TinyInputs(rank, step)).backward();
    GS_RETURN_IF_ERROR(ddp.FinishStep(Soon()));
  }
  return absl::OkStatus();
}

struct Outcome {
  std::string hash;
  double grad_norm = 0;
  float forwards = 0;  // rank 0's buffer, broadcast
};

// Trains on ranks that are threads; with `gpus`, one per rank, in their memory.
std::vector<Outcome> TrainGroup(const Case& c, const std::vector<std::shared_ptr<FakeGpu>>& gpus) {
  std::vector<Outcome> outcomes(c.world_size);
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  RunRanks(c.world_size, [&](int rank) {
    WorkerGroup group;
    group.rank = rank;
    group.world_size = c.world_size;
    group.run_id = "test";
    group.store = store;
    ShmRingOptions shm;
    shm.group = group;
    shm.update_site = c.site;
    std::unique_ptr<GradientSync> sync = *CreateShmRingGradientSync(shm);
    if (!gpus.empty()) sync = CreateStagedSync(std::move(sync), gpus[rank]);
    SideChannel side_channel(group, "ddp");
    const std::shared_ptr<TinyModule> module = NewTinyModule(rank);
    auto ddp = DdpEngine::Create(module, sync.get(), &side_channel, OptionsOf(c));
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    const int before = gpus.empty() ? 0 : gpus[rank]->synchronizations();
    const absl::Status trained = Train(**ddp, *module, c, rank, 1, kSteps);
    ASSERT_TRUE(trained.ok()) << trained;
    EXPECT_EQ(gpus.empty() ? 0 : gpus[rank]->synchronizations(), before);
    EXPECT_GE((*ddp)->timing().exposed, absl::ZeroDuration());
    ASSERT_TRUE((*ddp)->BroadcastBuffers(Soon()).ok());
    outcomes[rank] = {(*ddp)->ParamsSha256(), (*ddp)->grad_norm(),
                      module->forwards.data_ptr<float>()[0]};
    EXPECT_TRUE(sync->Shutdown(Soon()).ok());
  });
  return outcomes;
}

class DdpDeviceTest : public testing::TestWithParam<Case> {};

TEST_P(DdpDeviceTest, TrainsWithTheBitsOfTheHostAndWaitsForTheGpuNowhere) {
  const Case c = GetParam();
  const std::vector<Outcome> host = TrainGroup(c, {});
  std::vector<std::shared_ptr<FakeGpu>> gpus;
  for (int rank = 0; rank < c.world_size; ++rank) gpus.push_back(std::make_shared<FakeGpu>());
  const std::vector<Outcome> device = TrainGroup(c, gpus);
  for (int rank = 0; rank < c.world_size; ++rank) {
    EXPECT_EQ(device[rank].hash, host[0].hash);
    EXPECT_EQ(device[rank].grad_norm, host[0].grad_norm);
    EXPECT_EQ(device[rank].forwards, host[0].forwards);
    EXPECT_EQ(gpus[rank]->live_objects(), 0);
    EXPECT_EQ(gpus[rank]->unpinned_copies(), 0);
  }
  const bool clips = c.site == UpdateSite::kWorker && c.max_norm > 0;
  EXPECT_EQ(host[0].grad_norm > 0, clips);
  EXPECT_EQ(gpus[0]->calls("ScaleBy") > 0, clips);
}

INSTANTIATE_TEST_SUITE_P(Cases, DdpDeviceTest,
                         testing::Values(Case{UpdateSite::kWorker, OptimizerKind::kSgd, 0, 1},
                                         Case{UpdateSite::kWorker, OptimizerKind::kSgd, 0, 2},
                                         Case{UpdateSite::kWorker, OptimizerKind::kSgd, 0.05, 2},
                                         Case{UpdateSite::kWorker, OptimizerKind::kAdamW, 0.05, 3},
                                         Case{UpdateSite::kWorker, OptimizerKind::kAdamW, 1e6, 2},
                                         Case{UpdateSite::kOwner, OptimizerKind::kSgd, 0, 2},
                                         Case{UpdateSite::kOwner, OptimizerKind::kAdamW, 0.05, 3}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return absl::StrCat(info.index, Name(info));
                         });

// One worker, alone.
struct Alone {
  Alone(const Case& c, std::shared_ptr<FakeGpu> gpu, bool skip_nonfinite_steps = false)
      : module(NewTinyModule(3)), sync(CreateLocalSync(c.site)) {
    if (gpu != nullptr) sync = CreateStagedSync(std::move(sync), std::move(gpu));
    DdpEngineOptions options = OptionsOf(c);
    options.skip_nonfinite_steps = skip_nonfinite_steps;
    ddp = DdpEngine::Create(module, sync.get(), nullptr, std::move(options)).value();
  }

  std::shared_ptr<TinyModule> module;
  std::unique_ptr<GradientSync> sync;
  std::unique_ptr<DdpEngine> ddp;
};

TEST(DdpDeviceStateTest, StateFromTheDeviceGoesOnOnTheHostAndTheOtherWayRound) {
  const Case c = {UpdateSite::kWorker, OptimizerKind::kAdamW, 0, 1};
  Alone reference(c, nullptr);
  ASSERT_TRUE(Train(*reference.ddp, *reference.module, c, 0, 1, 4).ok());
  for (const bool device_first : {true, false}) {
    const auto gpu = std::make_shared<FakeGpu>();
    {
      Alone first(c, device_first ? gpu : nullptr);
      Alone second(c, device_first ? nullptr : gpu);
      ASSERT_TRUE(Train(*first.ddp, *first.module, c, 0, 1, 2).ok());
      const auto state = first.ddp->ExportState(Soon());
      ASSERT_TRUE(state.ok()) << state.status();
      ASSERT_TRUE(Train(*second.ddp, *second.module, c, 0, 1, 2).ok());
      ASSERT_TRUE(second.ddp->ImportState({}, Soon()).ok());
      ASSERT_TRUE(second.ddp->ImportState(*state, Soon()).ok());
      ASSERT_TRUE(Train(*second.ddp, *second.module, c, 0, 3, 4).ok());
      EXPECT_EQ(second.ddp->ParamsSha256(), reference.ddp->ParamsSha256());
    }
    EXPECT_EQ(gpu->live_objects(), 0);
    EXPECT_EQ(gpu->unpinned_copies(), 0);
  }
}

TEST(DdpDeviceSkipTest, AStepThatIsNotFiniteNeverWasAndEachStepWaitsOnce) {
  for (double max_norm : {0.0, 0.05}) {
    const Case c = {UpdateSite::kWorker, OptimizerKind::kAdamW, max_norm, 1};
    const auto gpu = std::make_shared<FakeGpu>();
    Alone host(c, nullptr);
    Alone device(c, gpu, /*skip_nonfinite_steps=*/true);
    const int before = gpu->synchronizations();
    ASSERT_TRUE(Train(*device.ddp, *device.module, c, 0, 1, 1).ok());
    EXPECT_FALSE(device.ddp->skipped());
    ASSERT_TRUE(device.ddp->BeginStep({2, 0.1, max_norm, 1}).ok());
    (device.module->Loss(TinyInputs(0, 2)) * std::numeric_limits<float>::infinity()).backward();
    ASSERT_TRUE(device.ddp->FinishStep(Soon()).ok());
    EXPECT_TRUE(device.ddp->skipped());
    ASSERT_TRUE(Train(*device.ddp, *device.module, c, 0, 3, 3).ok());
    EXPECT_FALSE(device.ddp->skipped());
    EXPECT_EQ(gpu->synchronizations(), before + 3);

    ASSERT_TRUE(Train(*host.ddp, *host.module, c, 0, 1, 1).ok());
    ASSERT_TRUE(host.ddp->BeginStep({2, 0.1, max_norm, 1}).ok());
    host.module->Loss(TinyInputs(0, 3)).backward();
    ASSERT_TRUE(host.ddp->FinishStep(Soon()).ok());
    EXPECT_EQ(device.ddp->ParamsSha256(), host.ddp->ParamsSha256());
  }
}

TEST(DdpDeviceFailureTest, AKernelThatCannotBeQueuedEndsTheJobWithItsStatus) {
  for (const std::string method : {"SgdStep", "SumsOfSquares", "ScaleBy", "Record"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    const Case c = {UpdateSite::kWorker, OptimizerKind::kSgd, 0.05, 1};
    Alone alone(c, gpu);
    ASSERT_TRUE(Train(*alone.ddp, *alone.module, c, 0, 1, 1).ok());
    const absl::Status failure = absl::InternalError(absl::StrCat("no ", method));
    gpu->FailNext(method, failure);
    EXPECT_EQ(Train(*alone.ddp, *alone.module, c, 0, 2, 2), failure) << method;
    EXPECT_EQ(alone.sync->status(), failure);
    EXPECT_EQ(alone.ddp->BeginStep({3, 0.1, 0, 1}), failure);
  }
}

// A loss whose gradient is the same in each step, so that a graph that computes nothing anew, as
// the fake's, has the gradients of a step that does.
at::Tensor LinearLoss(TinyModule& module) {
  at::Tensor loss = at::zeros({});
  float factor = 0.25f;
  for (const at::Tensor& p : module.parameters()) loss = loss + (p * (factor += 0.25f)).sum();
  return loss;
}

absl::Status LinearStep(DdpEngine& ddp, TinyModule& module, int64_t step) {
  GS_RETURN_IF_ERROR(ddp.BeginStep({step, 0.1, 0, 1}));
  LinearLoss(module).backward();
  return ddp.FinishStep(Soon());
}

TEST(DdpCaptureTest, ReplayedStepsAndOthersTakeTurnsWithTheBitsOfTheHost) {
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    const Case c = {site, OptimizerKind::kAdamW, 0, 2};
    const auto train = [&](bool on_gpu) {
      std::string hash;
      const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
      RunRanks(c.world_size, [&](int rank) {
        WorkerGroup group;
        group.rank = rank;
        group.world_size = c.world_size;
        group.run_id = "test";
        group.store = store;
        ShmRingOptions shm;
        shm.group = group;
        shm.update_site = c.site;
        const auto gpu = std::make_shared<FakeGpu>();
        {
          std::unique_ptr<GradientSync> sync = *CreateShmRingGradientSync(shm);
          if (on_gpu) sync = CreateStagedSync(std::move(sync), gpu);
          SideChannel side_channel(group, "ddp");
          const std::shared_ptr<TinyModule> module = NewTinyModule(rank);
          auto ddp = *DdpEngine::Create(module, sync.get(), &side_channel, OptionsOf(c));
          for (int64_t step = 1; step <= 6; ++step) {
            absl::Status status;
            if (on_gpu && step == 2) {
              status = ddp->Capture([&] {
                LinearLoss(*module).backward();
                return absl::OkStatus();
              });
            }
            ASSERT_TRUE(status.ok()) << status;
            if (on_gpu && step >= 2 && step != 4) {
              status = ddp->ReplayStep({step, 0.1, 0, 1});
              if (status.ok()) status = ddp->FinishStep(Soon());
            } else {
              status = LinearStep(*ddp, *module, step);
            }
            ASSERT_TRUE(status.ok()) << status;
          }
          EXPECT_EQ(gpu->calls("LaunchGraph"), on_gpu ? 4 : 0);
          if (rank == 0) hash = ddp->ParamsSha256();
          EXPECT_TRUE(sync->Shutdown(Soon()).ok());
        }
        EXPECT_EQ(gpu->live_objects(), 0);
      });
      return hash;
    };
    EXPECT_EQ(train(true), train(false));
  }
}

TEST(DdpCaptureTest, ABucketLeavesWhenTheGraphHasItsGradientsAndNotBefore) {
  const Case c = {UpdateSite::kOwner, OptimizerKind::kSgd, 0, 1};
  const auto gpu = std::make_shared<QueuedGpu>();
  Alone host(c, nullptr);
  Alone device(c, gpu);
  ASSERT_TRUE(LinearStep(*host.ddp, *host.module, 1).ok());
  ASSERT_TRUE(LinearStep(*device.ddp, *device.module, 1).ok());
  ASSERT_TRUE(device.ddp
                  ->Capture([&] {
                    LinearLoss(*device.module).backward();
                    return absl::OkStatus();
                  })
                  .ok());
  // The GPU is behind: backward comes to its gradients, which are others, when it is let go.
  Notification go;
  gpu->Enqueue(gpu->ComputeStream(), [&] {
    go.WaitForNotification();
    for (const at::Tensor& p : device.module->parameters()) p.grad().mul_(2);
  });
  ASSERT_TRUE(device.ddp->ReplayStep({2, 0.1, 0, 1}).ok());
  GiveOthersTime();
  go.Notify();
  ASSERT_TRUE(device.ddp->FinishStep(Soon()).ok());
  ASSERT_TRUE(host.ddp->BeginStep({2, 0.1, 0, 1}).ok());
  (LinearLoss(*host.module) * 2).backward();
  ASSERT_TRUE(host.ddp->FinishStep(Soon()).ok());
  // The result is there in the order of the compute stream.
  Notification reached;
  gpu->Enqueue(gpu->ComputeStream(), [&] { reached.Notify(); });
  reached.WaitForNotification();
  EXPECT_EQ(device.ddp->ParamsSha256(), host.ddp->ParamsSha256());
}

TEST(DdpCaptureTest, WhatCannotBeCapturedIsSaidAndStepsGoOnWithoutAGraph) {
  const Case c = {UpdateSite::kWorker, OptimizerKind::kSgd, 0, 1};
  Alone host(c, nullptr);
  const auto nothing = [] { return absl::OkStatus(); };
  EXPECT_EQ(host.ddp->Capture(nothing).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host.ddp->ReplayStep({1, 0.1, 0, 1}).code(), absl::StatusCode::kFailedPrecondition);
  const auto gpu = std::make_shared<FakeGpu>();
  Alone device(c, gpu);
  EXPECT_EQ(device.ddp->Capture(nothing).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device.ddp->Capture([] { return absl::OutOfRangeError("no data"); }),
            absl::OutOfRangeError("no data"));
  gpu->FailNext("Capture", absl::InternalError("not permitted when stream is capturing"));
  EXPECT_EQ(device.ddp
                ->Capture([&] {
                  LinearLoss(*device.module).backward();
                  return absl::OkStatus();
                })
                .code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(device.ddp->ReplayStep({1, 0.1, 0, 1}).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(LinearStep(*host.ddp, *host.module, 1).ok());
  ASSERT_TRUE(LinearStep(*device.ddp, *device.module, 1).ok());
  EXPECT_EQ(device.ddp->ParamsSha256(), host.ddp->ParamsSha256());
}

}  // namespace
}  // namespace gradsync
