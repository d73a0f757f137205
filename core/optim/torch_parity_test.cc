// RangeOptimizer against torch::optim: 20 steps, two groups each, every parameter within rounding.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "core/optim/range_optimizer.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr int64_t kSizes[] = {1000, 333};

// LibTorch may use fused multiply-adds, which round once where the kernels round twice.
constexpr double kTolerance = 1e-6;

OptimizerSpec TwoGroups(OptimizerKind kind) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.groups.resize(2);
  spec.groups[1].lr_scale = 0.1;
  return spec;
}

std::unique_ptr<torch::optim::OptimizerOptions> TorchOptions(OptimizerKind kind,
                                                             const OptimizerGroup& g, double lr) {
  lr *= g.lr_scale;
  if (kind == OptimizerKind::kSgd) {
    auto options = std::make_unique<torch::optim::SGDOptions>(lr);
    options->momentum(g.momentum).dampening(g.dampening);
    options->weight_decay(g.weight_decay).nesterov(g.nesterov);
    return options;
  }
  const auto betas = std::make_tuple(g.beta1, g.beta2);
  if (kind == OptimizerKind::kAdam) {
    auto options = std::make_unique<torch::optim::AdamOptions>(lr);
    options->betas(betas).eps(g.eps).weight_decay(g.weight_decay);
    return options;
  }
  auto options = std::make_unique<torch::optim::AdamWOptions>(lr);
  options->betas(betas).eps(g.eps).weight_decay(g.weight_decay);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> TorchOptimizer(
    OptimizerKind kind, std::vector<torch::optim::OptimizerParamGroup> groups) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1));
    case OptimizerKind::kAdam:
      return std::make_unique<torch::optim::Adam>(std::move(groups));
    case OptimizerKind::kAdamW:
      return std::make_unique<torch::optim::AdamW>(std::move(groups));
  }
  return nullptr;
}

// |ours - torch's| relative to the largest of torch's, after 20 steps.
double LargestError(const OptimizerSpec& spec, double base_lr) {
  torch::manual_seed(1);
  std::vector<torch::Tensor> theirs;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<GroupRange> segments;
  std::vector<float> ours;
  for (int g = 0; g < 2; ++g) {
    theirs.push_back(torch::randn({kSizes[g]}).requires_grad_());
    const auto begin = static_cast<int64_t>(ours.size());
    segments.push_back({{begin, begin + kSizes[g]}, g});
    const float* values = theirs[g].data_ptr<float>();
    ours.insert(ours.end(), values, values + kSizes[g]);
    groups.emplace_back(std::vector<torch::Tensor>{theirs[g]},
                        TorchOptions(spec.kind, spec.groups[g], base_lr));
  }
  auto torch_optimizer = TorchOptimizer(spec.kind, std::move(groups));
  const auto size = static_cast<int64_t>(ours.size());
  RangeOptimizer optimizer(spec, {0, size}, segments);

  for (int step = 1; step <= 20; ++step) {
    const double lr = base_lr / std::sqrt(step);
    torch::Tensor grad = torch::randn({size}) * std::pow(10.0, step % 5 - 3);
    for (int g = 0; g < 2; ++g) {
      theirs[g].mutable_grad() =
          grad.slice(0, segments[g].range.begin, segments[g].range.end).clone();
      torch_optimizer->param_groups()[g].options().set_lr(lr * spec.groups[g].lr_scale);
    }
    torch_optimizer->step();
    optimizer.Apply(ours.data(), grad.data_ptr<float>(), lr, step);
  }

  double error = 0, largest = 0;
  for (int g = 0; g < 2; ++g) {
    const float* values = theirs[g].data_ptr<float>();
    for (int64_t i = 0; i < kSizes[g]; ++i) {
      error = std::max(error, std::fabs(double{ours[segments[g].range.begin + i]} - values[i]));
      largest = std::max(largest, std::fabs(double{values[i]}));
    }
  }
  return error / largest;
}

TEST(TorchParityTest, PlainSgd) {
  EXPECT_LT(LargestError(TwoGroups(OptimizerKind::kSgd), 0.1), kTolerance);
}

TEST(TorchParityTest, SgdWithMomentumDampeningAndWeightDecay) {
  OptimizerSpec spec = TwoGroups(OptimizerKind::kSgd);
  spec.groups[0].momentum = 0.9;
  spec.groups[0].weight_decay = 5e-4;
  spec.groups[1].momentum = 0.7;
  spec.groups[1].dampening = 0.3;
  EXPECT_LT(LargestError(spec, 0.1), kTolerance);
}

TEST(TorchParityTest, SgdWithNesterovMomentumInOneGroup) {
  OptimizerSpec spec = TwoGroups(OptimizerKind::kSgd);
  spec.groups[0].momentum = 0.9;
  spec.groups[0].nesterov = true;
  spec.groups[0].weight_decay = 1e-2;
  EXPECT_LT(LargestError(spec, 0.1), kTolerance);
}

TEST(TorchParityTest, Adam) {
  OptimizerSpec spec = TwoGroups(OptimizerKind::kAdam);
  spec.groups[0].weight_decay = 1e-2;
  spec.groups[1].beta1 = 0.8;
  spec.groups[1].eps = 1e-3;
  EXPECT_LT(LargestError(spec, 1e-2), kTolerance);
}

TEST(TorchParityTest, AdamW) {
  OptimizerSpec spec = TwoGroups(OptimizerKind::kAdamW);
  spec.groups[0].weight_decay = 1e-1;
  spec.groups[1].beta2 = 0.95;
  EXPECT_LT(LargestError(spec, 1e-2), kTolerance);
}

}  // namespace
}  // namespace gradsync
