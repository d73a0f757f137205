// Activation checkpointing and dropout: what a step computes, bit by bit, and what is counted once.
#include "worker/models/checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"
#include "worker/models/dropout.h"
#include "worker/models/loss.h"
#include "worker/models/model.h"

namespace gradsync {
namespace {

ModelOptions Small(const std::string& name) {
  ModelOptions options;
  options.name = name;
  options.stem = "cifar";
  options.image_size = 16;
  options.gpt_width = 16;
  options.gpt_layers = 3;
  options.gpt_heads = 2;
  options.gpt_context = 8;
  options.dropout = 0.2;
  return options;
}

at::Tensor InputOf(const std::string& model) {
  if (model == "gpt") return at::ones({4, 8}, at::kLong).cumsum(1).fmod(10);
  return at::ones({4, 3, 16, 16}).cumsum(2).div(16).add(at::ones({4, 1, 1, 1}).cumsum(0));
}

struct StepResult {
  at::Tensor loss;
  std::vector<at::Tensor> gradients, buffers;
  int gradient_calls = 0;  // of a hook on the first parameter
};

StepResult Step(const ModelOptions& options) {
  const auto model = CreateModel(options).value();
  const at::Tensor input = InputOf(options.name);
  const at::Tensor labels = options.name == "gpt" ? input : at::ones({4}, at::kLong);
  StepResult result;
  model->parameters()[0].register_hook([&result](at::Tensor) { ++result.gradient_calls; });
  for (uint64_t step = 1; step <= 2; ++step) {
    model->BeginStep(StepSeed(/*seed=*/1, /*rank=*/0, static_cast<int64_t>(step), 0));
    result.loss = CrossEntropy(model->forward(input), labels);
    result.loss.backward();
  }
  for (const at::Tensor& p : model->parameters()) result.gradients.push_back(p.grad());
  for (const at::Tensor& b : model->buffers()) result.buffers.push_back(b);
  return result;
}

class CheckpointTest : public testing::TestWithParam<std::string> {};

TEST_P(CheckpointTest, AStepHasTheSameBitsWithAndWithout) {
  ModelOptions options = Small(GetParam());
  const StepResult plain = Step(options);
  options.activation_checkpointing = true;
  const StepResult recomputed = Step(options);
  EXPECT_TRUE(at::equal(plain.loss, recomputed.loss));
  ASSERT_EQ(plain.gradients.size(), recomputed.gradients.size());
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(plain.gradients[i], recomputed.gradients[i])) << "parameter " << i;
  }
  // Running statistics and counts of BatchNorm among them.
  for (size_t i = 0; i < plain.buffers.size(); ++i) {
    EXPECT_TRUE(at::equal(plain.buffers[i], recomputed.buffers[i])) << "buffer " << i;
  }
  EXPECT_EQ(recomputed.gradient_calls, 2) << "in two steps";
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointTest, testing::Values("resnet18", "mlp", "gpt"),
                         [](const auto& info) { return info.param; });

// A block that is run without a graph is run again in backward, and only there.
TEST(RecomputedTest, RunsTwiceInAStepAndItsInputNeedsNoGradient) {
  int runs = 0;
  auto block = std::make_shared<Recomputed>();
  const at::Tensor weight = at::ones({3}).requires_grad_(true);
  block->forward = [&](const at::Tensor& x) {
    ++runs;
    return x.mul(weight);
  };
  const at::Tensor y = RunRecomputed(block, at::ones({2, 3}));
  EXPECT_EQ(runs, 1);
  ASSERT_TRUE(y.requires_grad());
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({3}).mul(2)));
}

TEST(DropoutTest, DropsItsShareAndScalesTheRest) {
  Dropout dropout(0.25, std::make_shared<StepRandom>());
  const at::Tensor y = dropout.forward(at::ones({1 << 20}));
  const double kept = y.ne(0).sum().item<int64_t>() / static_cast<double>(1 << 20);
  EXPECT_NEAR(kept, 0.75, 0.002);  // four standard deviations
  EXPECT_FLOAT_EQ(y.max().item<float>(), 1 / 0.75f);
  dropout.eval();
  EXPECT_TRUE(at::equal(dropout.forward(at::ones({8})), at::ones({8})));
}

TEST(DropoutTest, SeedLayerAndPlaceDecideAndNothingElse) {
  const auto random = std::make_shared<StepRandom>();
  Dropout first(0.5, random), second(0.5, random);
  const at::Tensor x = at::ones({64, 64});
  const c10::Device cpu(c10::DeviceType::CPU);
  random->Begin(7, cpu);
  const at::Tensor a = first.forward(x);
  EXPECT_TRUE(at::equal(first.forward(x), a));
  EXPECT_FALSE(at::equal(second.forward(x), a));
  random->Begin(8, cpu);
  const at::Tensor b = first.forward(x);
  // Independent halves agree in half of the places, within four standard deviations.
  EXPECT_NEAR(a.eq(b).to(at::kFloat).mean().item<float>(), 0.5, 0.03);
  EXPECT_NEAR(a[0].eq(a[1]).to(at::kFloat).mean().item<float>(), 0.5, 0.25);
  random->Begin(7, cpu);
  EXPECT_TRUE(at::equal(first.forward(x), a));
}

TEST(StepSeedTest, DiffersByEachOfItsArguments) {
  const uint64_t seed = StepSeed(1, 2, 3, 4);
  EXPECT_EQ(StepSeed(1, 2, 3, 4), seed);
  EXPECT_NE(StepSeed(0, 2, 3, 4), seed);
  EXPECT_NE(StepSeed(1, 3, 3, 4), seed);
  EXPECT_NE(StepSeed(1, 2, 4, 4), seed);
  EXPECT_NE(StepSeed(1, 2, 3, 5), seed);
}

}  // namespace
}  // namespace gradsync
