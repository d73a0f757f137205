#include "gradsync/ddp/step_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "core/base/kernels.h"
#include "core/optim/range_optimizer.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Large enough for several pieces per bucket, with a frontier of groups inside a piece and padding
// between tensors.
Plan LargePlan(OptimizerSpec optimizer) {
  optimizer.groups.resize(2, optimizer.groups[0]);
  optimizer.groups[1].weight_decay = 0;
  const std::vector<TensorSpec> tensors = {
      {"a", {300001}, {1}, 0}, {"b", {17}, {1}, 1}, {"c", {300005}, {1}, 0}};
  return Plan::FromBuckets(tensors, {{2, 1}, {0}}, optimizer, /*world_size=*/3, /*chunk_bytes=*/0)
      .value();
}

OptimizerSpec Momentum() {
  OptimizerSpec spec = {OptimizerKind::kSgd, {{}}};
  spec.groups[0].momentum = 0.9;
  spec.groups[0].dampening = 0.1;
  spec.groups[0].weight_decay = 0.01;
  return spec;
}

using FlatValues = std::vector<std::vector<float>>;

// Values in [-1, 1) for every element but padding, which is zero. The generator is Knuth's LCG.
FlatValues RandomValues(const Plan& plan, uint64_t seed) {
  FlatValues values;
  for (const BucketPlan& bucket : plan.buckets()) {
    std::vector<float>& flat = values.emplace_back(bucket.numel, 0.0f);
    for (const PlacedTensor& placed : bucket.tensors) {
      for (int64_t i = 0; i < plan.tensors()[placed.tensor].numel(); ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        flat[placed.offset + i] = static_cast<float>(seed >> 40) / static_cast<float>(1 << 23) - 1;
      }
    }
  }
  return values;
}

// What owners compute, with one range per bucket and no threads.
class OnePieceOptimizer {
 public:
  explicit OnePieceOptimizer(const Plan& plan) : plan_(plan) {
    for (size_t b = 0; b < plan.buckets().size(); ++b) {
      const ElementRange whole = {0, plan.buckets()[b].numel};
      buckets_.emplace_back(plan.optimizer(), whole, plan.GroupRanges(static_cast<int>(b), whole));
    }
  }

  void Apply(const StepOptions& step, FlatValues mean, FlatValues* params) {
    if (step.max_norm > 0) Clip(step.max_norm, &mean);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].Apply((*params)[b].data(), mean[b].data(), step.lr, step.step);
    }
  }

 private:
  void Clip(double max_norm, FlatValues* mean) const {
    double squares = 0;
    for (size_t b = 0; b < mean->size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      for (int slot = 0; slot < layout.slots(); ++slot) {
        const ElementRange range = layout.range(slot);
        squares += SumOfSquares((*mean)[b].data() + range.begin, range.size());
      }
    }
    const double scale = max_norm / (std::sqrt(squares) + 1e-6);
    if (scale >= 1) return;
    for (std::vector<float>& flat : *mean) {
      for (float& x : flat) x *= static_cast<float>(scale);
    }
  }

  const Plan plan_;
  std::vector<RangeOptimizer> buckets_;
};

struct Worker {
  explicit Worker(const Plan& plan)
      : params(RandomValues(plan, 1)),
        grads(RandomValues(plan, 2)),
        optimizer(CreateWorkerOptimizer(plan, Memory())) {}

  std::vector<BucketMemory> Memory() {
    std::vector<BucketMemory> memory;
    for (size_t b = 0; b < params.size(); ++b) {
      memory.push_back({grads[b].data(), params[b].data(), static_cast<int64_t>(params[b].size())});
    }
    return memory;
  }

  void Step(const StepOptions& step, const FlatValues& mean) {
    for (size_t b = 0; b < mean.size(); ++b)
      std::copy(mean[b].begin(), mean[b].end(), grads[b].begin());
    if (step.max_norm > 0) {
      EXPECT_TRUE(optimizer->ClipGradients(step.max_norm).ok());
    }
    for (size_t b = 0; b < mean.size(); ++b) {
      EXPECT_TRUE(optimizer->Update(step, static_cast<int>(b)).ok());
    }
  }

  FlatValues params, grads;
  std::unique_ptr<WorkerOptimizer> optimizer;
};

TEST(WorkerOptimizerTest, TheBitsAreThoseOfOneOptimizerPerBucketForAnyNumberOfThreads) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    OptimizerSpec spec = Momentum();
    spec.kind = kind;
    const Plan plan = LargePlan(spec);
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      Worker worker(plan);
      OnePieceOptimizer reference(plan);
      FlatValues expected = worker.params;
      for (int64_t s = 1; s <= 4; ++s) {
        const StepOptions step = {s, 0.1, s % 2 == 0 ? 0.5 : 0, 1};
        const FlatValues mean = RandomValues(plan, 10 + s);
        worker.Step(step, mean);
        reference.Apply(step, mean, &expected);
        ASSERT_EQ(worker.params, expected) << "step " << s << " threads " << threads;
      }
    }
  }
}

TEST(WorkerOptimizerTest, ClippingReturnsTheNormAndLeavesSmallGradientsAlone) {
  const Plan plan = LargePlan(Momentum());
  Worker worker(plan);
  double squares = 0;
  for (const auto& flat : worker.grads) {
    for (float x : flat) squares += static_cast<double>(x) * x;
  }
  const FlatValues before = worker.grads;
  ASSERT_TRUE(worker.optimizer->ClipGradients(1e9).ok());
  EXPECT_NEAR(worker.optimizer->grad_norm(), std::sqrt(squares), 1e-9 * std::sqrt(squares));
  EXPECT_EQ(worker.grads, before);
  ASSERT_TRUE(worker.optimizer->ClipGradients(2.0).ok());
  ASSERT_TRUE(worker.optimizer->ClipGradients(1e9).ok());
  EXPECT_NEAR(worker.optimizer->grad_norm(), 2.0, 1e-5);
}

TEST(WorkerOptimizerTest, StateExportedAndImportedGoesOnWithTheSameBits) {
  const Plan plan = LargePlan(Momentum());
  Worker first(plan);
  first.Step({1, 0.1, 0, 1}, RandomValues(plan, 11));
  first.Step({2, 0.1, 0, 1}, RandomValues(plan, 12));
  const OptimizerState state = first.optimizer->Export(2).value();
  EXPECT_EQ(state.step, 2);
  EXPECT_EQ(state.slots.at("b").at("momentum_buffer").size(), 17u);

  Worker second(plan);
  for (size_t b = 0; b < first.params.size(); ++b) {
    std::copy(first.params[b].begin(), first.params[b].end(), second.params[b].begin());
  }
  ASSERT_TRUE(second.optimizer->Import(state).ok());
  first.Step({3, 0.1, 0, 1}, RandomValues(plan, 13));
  second.Step({3, 0.1, 0, 1}, RandomValues(plan, 13));
  EXPECT_EQ(first.params, second.params);
}

TEST(WorkerOptimizerTest, AnEmptyStateStartsFromTheBeginning) {
  const Plan plan = LargePlan(Momentum());
  EXPECT_TRUE(Worker(plan).optimizer->Export(0)->slots.empty());
  Worker worker(plan), fresh(plan);
  worker.Step({1, 0.1, 0, 1}, RandomValues(plan, 11));
  ASSERT_TRUE(worker.optimizer->Import({}).ok());
  for (size_t b = 0; b < fresh.params.size(); ++b) {
    std::copy(fresh.params[b].begin(), fresh.params[b].end(), worker.params[b].begin());
  }
  worker.Step({1, 0.1, 0, 1}, RandomValues(plan, 12));
  fresh.Step({1, 0.1, 0, 1}, RandomValues(plan, 12));
  EXPECT_EQ(worker.params, fresh.params);
}

TEST(WorkerOptimizerTest, AStateForAnotherPlanIsRefused) {
  const Plan plan = LargePlan(Momentum());
  Worker worker(plan);
  OptimizerState state;
  state.slots["b"]["momentum_buffer"] = {1.0f};
  EXPECT_EQ(worker.optimizer->Import(state).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
