// Modules and optimizers on a real GPU.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/status_macros.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "core/sync/buckets.h"
#include "core/sync/staged_sync.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gradsync/ddp/device_worker_optimizer.h"
#include "gradsync/ddp/step_exchange.h"
#include "gradsync/ddp/tensor_over.h"
#include "gtest/gtest.h"
#include "tests/gpu_rank.h"
#include "tests/rank_threads.h"
#include "tests/real_gpu.h"
#include "tests/reference.h"
#include "tests/run_step.h"
#include "tests/tiny_job.h"

namespace gradsync {
namespace {

constexpr int64_t kSteps = 4;

OptimizerSpec Optimizer(OptimizerKind kind) {
  OptimizerSpec spec = {kind, {{}}};
  spec.groups[0].momentum = 0.9;
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

class DeviceOptimizerOnGpuTest : public RealGpuTest {};

TEST_F(DeviceOptimizerOnGpuTest, ClipsAndUpdatesWithTheBitsOfTheHosts) {
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    const Plan plan =
        *Plan::FromBuckets({{"a", {300001}, {1}, 0}, {"b", {17}, {1}, 0}, {"c", {70005}, {1}, 0}},
                           {{2, 1}, {0}}, Optimizer(kind), /*world_size=*/1, /*chunk_bytes=*/4096);
    const std::vector<GradBucket> host = *AllocateBuckets(plan);
    const std::vector<GradBucket> device = *AllocateDeviceBuckets(plan, gpu_);
    const auto on_host = CreateWorkerOptimizer(plan, MemoryOf(host));
    const auto on_device = *CreateDeviceWorkerOptimizer(plan, MemoryOf(device), gpu_);
    for (const auto& buckets : {host, device}) {
      Write(RandomValues(plan, 7), buckets, &GradBucket::param);
    }
    for (StepOptions step; step.step < 3;) {
      ++step.step;
      step.lr = 0.01;
      for (const auto& buckets : {host, device}) {
        Write(RandomValues(plan, 100 + step.step), buckets, &GradBucket::grad);
      }
      for (WorkerOptimizer* optimizer : {on_host.get(), on_device.get()}) {
        ASSERT_EQ(optimizer->ClipGradients(0.5), absl::OkStatus());
        for (int b : {0, 1}) ASSERT_EQ(optimizer->Update(step, b), absl::OkStatus());
      }
      EXPECT_EQ(Read(device, &GradBucket::grad), Read(host, &GradBucket::grad));
      EXPECT_EQ(Read(device, &GradBucket::param), Read(host, &GradBucket::param));
      EXPECT_EQ(on_device->grad_norm(), on_host->grad_norm());
    }
    EXPECT_EQ(*on_device->GradientNorm(), *on_host->GradientNorm());
    EXPECT_EQ(on_device->Export(3)->slots, on_host->Export(3)->slots);
  }
}

class TrainingOnGpuTest : public RealGpuTest {
 protected:
  c10::Device device() const { return TensorDevice(gpu_.get()); }

  static StepOptions Step(int64_t number) {
    StepOptions step;
    step.step = number;
    step.lr = 0.1;
    return step;
  }

  // Forward and backward as in the group, and nothing else on the GPU: the host adds and updates.
  FlatValues TrainAlone(const Plan& plan) const {
    const std::shared_ptr<TinyModule> module = NewTinyModule(3);
    module->to(device());
    const std::vector<at::Tensor> tensors = module->parameters();
    FlatValues params;
    for (const BucketPlan& bucket : plan.buckets()) params.emplace_back(bucket.numel, 0.0f);
    const auto for_each = [&](const std::function<void(at::Tensor flat, const at::Tensor&)>& call,
                              FlatValues* values) {
      for (size_t b = 0; b < plan.buckets().size(); ++b) {
        for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
          const at::Tensor& p = tensors[placed.tensor];
          call(at::from_blob((*values)[b].data() + placed.offset, p.sizes()), p);
        }
      }
    };
    c10::NoGradGuard no_grad;
    for_each([](at::Tensor flat, const at::Tensor& p) { flat.copy_(p); }, &params);
    ReferenceOptimizer optimizer(plan);
    for (int64_t step = 1; step <= kSteps; ++step) {
      std::vector<FlatValues> gradients;
      for (int rank = 0; rank < plan.world_size(); ++rank) {
        module->zero_grad();
        {
          c10::AutoGradMode grad(true);
          module->Loss(TinyInputs(rank, step).to(device())).backward();
        }
        FlatValues& flat = gradients.emplace_back();
        for (const BucketPlan& bucket : plan.buckets()) flat.emplace_back(bucket.numel, 0.0f);
        for_each([](at::Tensor to, const at::Tensor& p) { to.copy_(p.grad()); }, &flat);
      }
      optimizer.Apply(Step(step), ReferenceMean(plan, gradients, 1), &params);
      for_each([](at::Tensor flat, const at::Tensor& p) { p.copy_(flat); }, &params);
    }
    return params;
  }

  // Ranks as threads that share the GPU; every one must end as TrainAlone() does. With `captured`
  // steps from the second on are replayed.
  void ExpectLikeAlone(
      int ranks,
      const std::function<absl::StatusOr<std::unique_ptr<GradientSync>>(const WorkerGroup&)>&
          create,
      bool captured = false) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    RunRanks(ranks, [&](int rank) {
      WorkerGroup group;
      group.rank = rank;
      group.world_size = ranks;
      group.run_id = "training";
      group.store = store;
      if (captured) ASSERT_EQ(gpu_->UseOwnComputeStream(), absl::OkStatus());
      const auto sync = create(group);
      ASSERT_TRUE(sync.ok()) << sync.status();
      SideChannel side_channel(group, "ddp");
      DdpEngineOptions options;
      options.optimizer = Optimizer(OptimizerKind::kSgd);
      options.plan.first_bucket_bytes = options.plan.bucket_bytes = 128;
      const std::shared_ptr<TinyModule> module = NewTinyModule(3 + rank);
      module->to(device());
      const auto ddp = DdpEngine::Create(module, sync->get(), &side_channel, options);
      ASSERT_TRUE(ddp.ok()) << ddp.status();
      const at::Tensor inputs = TinyInputs(rank, 1).to(device());
      const auto backward = [&] {
        module->Loss(inputs).backward();
        return absl::OkStatus();
      };
      for (int64_t step = 1; step <= kSteps; ++step) {
        if (captured && step == 2) {
          ASSERT_EQ((*ddp)->Capture(backward), absl::OkStatus());
        }
        inputs.copy_(TinyInputs(rank, step));
        if (captured && step >= 2) {
          ASSERT_EQ((*ddp)->ReplayStep(Step(step)), absl::OkStatus());
        } else {
          ASSERT_EQ((*ddp)->BeginStep(Step(step)), absl::OkStatus());
          ASSERT_EQ(backward(), absl::OkStatus());
        }
        ASSERT_EQ((*ddp)->FinishStep(Soon()), absl::OkStatus());
      }
      const FlatValues expected = TrainAlone((*ddp)->plan());
      const std::vector<at::Tensor> tensors = module->parameters();
      for (size_t b = 0; b < expected.size(); ++b) {
        for (const PlacedTensor& placed : (*ddp)->plan().buckets()[b].tensors) {
          const at::Tensor found = tensors[placed.tensor].detach().cpu().contiguous();
          const float* const data = found.data_ptr<float>();
          EXPECT_EQ(std::vector<float>(data, data + found.numel()),
                    std::vector<float>(expected[b].begin() + placed.offset,
                                       expected[b].begin() + placed.offset + found.numel()))
              << "rank " << rank << ", " << (*ddp)->plan().tensors()[placed.tensor].name;
        }
      }
      EXPECT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
    });
  }
};

constexpr UpdateSite kSites[] = {UpdateSite::kWorker, UpdateSite::kOwner};

TEST_F(TrainingOnGpuTest, OverNcclWithOneRankIsLikeAlone) {
  for (const UpdateSite site : kSites) {
    for (const bool captured : {false, true}) {
      ExpectLikeAlone(
          1, [site](const WorkerGroup& group) { return CreateRealNccl(group, site, /*owners=*/0); },
          captured);
    }
  }
}

TEST_F(TrainingOnGpuTest, OverCopiesThroughTheHostIsLikeAlone) {
  for (const UpdateSite site : kSites) {
    for (const int ranks : {1, 2}) {
      ExpectLikeAlone(
          ranks,
          [&](const WorkerGroup& group) -> absl::StatusOr<std::unique_ptr<GradientSync>> {
            ShmRingOptions options;
            options.group = group;
            options.update_site = site;
            GS_ASSIGN_OR_RETURN(auto host, CreateShmRingGradientSync(options));
            return CreateStagedSync(std::move(host), gpu_);
          },
          /*captured=*/ranks == 1);
    }
  }
}

}  // namespace
}  // namespace gradsync
