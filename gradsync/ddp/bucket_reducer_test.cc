#include "gradsync/ddp/bucket_reducer.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/ops/embedding.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradsync/ddp/tensor_over.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A module bound to plain buckets, with a reducer that notes its launches.
struct Fixture {
  explicit Fixture(BucketCopies copies, std::vector<std::vector<int>> buckets = {{3}, {2}, {1, 0}})
      : plan(PlanFor(module, buckets).value()),
        memory(*AllocateBuckets(plan)),
        parameters(FlatParameters::Bind(module, plan, memory).value()),
        reducer(std::make_unique<BucketReducer>(
            plan, parameters, [this](int b) { launched.push_back(b); }, nullptr, copies)) {}

  TinyModule module;
  Plan plan;
  std::vector<GradBucket> memory;
  FlatParameters parameters;
  std::vector<int> launched;
  std::unique_ptr<BucketReducer> reducer;
};

class BucketReducerTest : public ::testing::TestWithParam<BucketCopies> {};

INSTANTIATE_TEST_SUITE_P(Copies, BucketReducerTest,
                         ::testing::Values(BucketCopies::kEach, BucketCopies::kTogether),
                         [](const ::testing::TestParamInfo<BucketCopies>& info) {
                           return info.param == BucketCopies::kEach ? "Each" : "Together";
                         });

// The gradient of last_weight, as autograd alone computes it.
at::Tensor Expected(TinyModule& module, const at::Tensor& x) {
  const at::Tensor hidden =
      at::relu(at::linear(x, module.first_weight.detach(), module.first_bias.detach())) *
      module.scale.detach();
  at::Tensor weight = module.last_weight.detach().clone().set_requires_grad(true);
  at::linear(hidden, weight).pow(2).mean().backward();
  return weight.grad();
}

TEST_P(BucketReducerTest, BucketsLaunchInOrderWhileBackwardRuns) {
  Fixture f(GetParam());
  std::vector<int> launched_at_first_layer;
  at::Tensor x = at::ones({2, 4});
  x.set_requires_grad(true);
  at::Tensor hidden = at::linear(x, f.module.first_weight, f.module.first_bias);
  hidden.register_hook([&](at::Tensor) { launched_at_first_layer = f.launched; });
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  at::linear(hidden * f.module.scale, f.module.last_weight).sum().backward();
  EXPECT_THAT(launched_at_first_layer, ElementsAre(0, 1));
  EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
  EXPECT_TRUE(f.reducer->FinishBackward().ok());
}

TEST_P(BucketReducerTest, ABucketThatIsCompleteEarlyWaitsForThoseBefore) {
  Fixture f(GetParam(), {{0, 1}, {2}, {3}});
  std::vector<int> launched_at_first_layer = {-1};
  at::Tensor hidden = at::linear(at::ones({2, 4}), f.module.first_weight, f.module.first_bias);
  hidden.register_hook([&](at::Tensor) { launched_at_first_layer = f.launched; });
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  at::linear(hidden * f.module.scale, f.module.last_weight).sum().backward();
  EXPECT_THAT(launched_at_first_layer, IsEmpty());
  EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
}

TEST_P(BucketReducerTest, AnObserverHearsOfEachGradientOnceAndBeforeItsBucketLeaves) {
  Fixture f(GetParam(), {{3}, {2, 1}, {0}});
  f.reducer.reset();
  std::vector<std::string> events;
  f.reducer = std::make_unique<BucketReducer>(
      f.plan, f.parameters, [&](int bucket) { events.push_back(absl::StrCat("bucket ", bucket)); },
      [&](int parameter) { events.push_back(absl::StrCat(parameter)); }, GetParam());
  for (int step = 0; step < 2; ++step) {
    events.clear();
    ASSERT_TRUE(f.reducer->BeginStep().ok());
    f.module.Loss(at::ones({2, 4})).backward();
    ASSERT_TRUE(f.reducer->FinishBackward().ok());
    ASSERT_EQ(events.size(), 7u);
    std::vector<std::string> gradients;
    for (const std::string& event : events) {
      if (event[0] != 'b') gradients.push_back(event);
    }
    EXPECT_THAT(gradients, UnorderedElementsAre("0", "1", "2", "3"));
    EXPECT_EQ(events[0], "3");
    EXPECT_EQ(events[1], "bucket 0");
    EXPECT_EQ(events.back(), "bucket 2");
  }
}

// As if the first weight were computed with in bf16.
struct CopyFixture : Fixture {
  explicit CopyFixture(BucketCopies copies) : Fixture(copies, {{3, 2, 1, 0}}) {
    copy = module.first_weight.detach().to(at::kBFloat16).set_requires_grad(true);
    parameters.SetLeaf(0, copy);
    reducer = std::make_unique<BucketReducer>(
        plan, parameters, [this](int b) { launched.push_back(b); }, nullptr, copies);
  }

  at::Tensor Loss(const at::Tensor& x) const {
    const at::Tensor hidden = at::linear(x.to(at::kBFloat16), copy).to(at::kFloat);
    return at::linear(at::relu(hidden + module.first_bias) * module.scale, module.last_weight)
        .pow(2)
        .mean();
  }

  at::Tensor copy;
};

TEST_P(BucketReducerTest, AGradientOfAnotherTypeIsWidenedIntoItsBucket) {
  CopyFixture f(GetParam());
  const at::Tensor x = at::ones({2, 4});
  const at::Tensor alone = torch::autograd::grad({f.Loss(x)}, {f.copy})[0];
  ASSERT_EQ(alone.scalar_type(), at::kBFloat16);
  for (int backwards : {1, 2}) {
    if (backwards == 2) {
      f.reducer->EnterNoSync();
      f.Loss(x).backward();
      f.reducer->LeaveNoSync();
    }
    ASSERT_TRUE(f.reducer->BeginStep().ok());
    f.Loss(x).backward();
    ASSERT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
    EXPECT_TRUE(f.module.first_weight.grad().equal(backwards * alone.to(at::kFloat)));
    EXPECT_FALSE(f.copy.grad().defined());
  }
  EXPECT_THAT(f.launched, ElementsAre(0, 0));
}

TEST_P(BucketReducerTest, AHookOnACopyIsRefusedByName) {
  CopyFixture f(GetParam());
  f.copy.register_hook([](at::Tensor) {});
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.Loss(at::ones({2, 4})).backward();
  const absl::Status status = f.reducer->FinishBackward();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("first_weight"), HasSubstr("copy")));
}

// Buckets that take turns with one piece of memory. What was there is what was launched.
struct SharedMemoryFixture {
  explicit SharedMemoryFixture(std::vector<std::vector<int>> buckets, BucketCopies copies)
      : plan(WithOneSlot(PlanFor(module, buckets).value())),
        memory(*AllocateBuckets(plan)),
        parameters(FlatParameters::Bind(module, plan, memory).value()),
        reducer(std::make_unique<BucketReducer>(
            plan, parameters,
            [this](int b) {
              events.push_back(absl::StrCat("launch ", b));
              launched.push_back(TensorOver(memory[b].grad).clone());
            },
            nullptr, copies,
            [this](int b) {
              events.push_back(absl::StrCat("room for ", b));
              // The owner is done with it, and leaves it as it is.
              return absl::OkStatus();
            })) {}

  static Plan WithOneSlot(const Plan& plan) {
    BucketSlots slots;
    slots.gradients = 1;
    return *plan.WithSlots(slots);
  }

  TinyModule module;
  Plan plan;
  std::vector<GradBucket> memory;
  FlatParameters parameters;
  std::vector<std::string> events;
  std::vector<at::Tensor> launched;
  std::unique_ptr<BucketReducer> reducer;
};

TEST_P(BucketReducerTest, BucketsTakeTurnsWithMemoryAndPaddingStaysZero) {
  // In the order of backward; and against it, so that all gradients wait for the first bucket.
  for (const std::vector<std::vector<int>>& buckets :
       std::vector<std::vector<std::vector<int>>>{{{3}, {2}, {1, 0}}, {{0, 1}, {2}, {3}}}) {
    SharedMemoryFixture f(buckets, GetParam());
    EXPECT_EQ(f.memory[0].grad.data, f.memory[2].grad.data);
    const at::Tensor x = at::randn({5, 4});
    const at::Tensor expected = Expected(f.module, x);
    for (int step = 0; step < 2; ++step) {
      f.events.clear();
      f.launched.clear();
      ASSERT_TRUE(f.reducer->BeginStep().ok());
      f.module.Loss(x).backward();
      ASSERT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
      EXPECT_THAT(f.events,
                  ElementsAre("launch 0", "room for 1", "launch 1", "room for 2", "launch 2"));
      const size_t last_weight = buckets[0][0] == 3 ? 0 : 2;
      EXPECT_TRUE(f.launched[last_weight].slice(0, 0, 24).equal(expected.flatten()));
      // Behind 24 elements of last_weight, and 8 of scale, to the end of a cache line.
      EXPECT_EQ(f.launched[last_weight].slice(0, 24).abs().sum().item<float>(), 0);
      EXPECT_GT(f.launched[1].slice(0, 0, 8).abs().sum().item<float>(), 0);
      EXPECT_EQ(f.launched[1].slice(0, 8).abs().sum().item<float>(), 0);
    }
  }
}

TEST_P(BucketReducerTest, ZerosTakeTurnsWithMemoryToo) {
  SharedMemoryFixture f({{0, 1}, {2}, {3}}, GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.last_weight.sum().backward();
  EXPECT_THAT(f.events, IsEmpty());
  f.reducer->CompleteWithZeros();
  ASSERT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
  EXPECT_THAT(f.events,
              ElementsAre("launch 0", "room for 1", "launch 1", "room for 2", "launch 2"));
  for (const int bucket : {0, 1}) EXPECT_EQ(f.launched[bucket].abs().sum().item<float>(), 0);
  EXPECT_EQ(f.launched[2].sum().item<float>(), 24);
}

TEST_P(BucketReducerTest, MicroBatchesAreRefusedWhereBucketsShareMemory) {
  SharedMemoryFixture f({{3}, {2}, {1, 0}}, GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.reducer->EnterNoSync();
  f.module.Loss(at::ones({2, 4})).backward();
  f.reducer->LeaveNoSync();
  f.module.Loss(at::ones({2, 4})).backward();
  EXPECT_THAT(f.reducer->FinishBackward().message(), HasSubstr("share"));
}

TEST_P(BucketReducerTest, EachStepOverwritesWithoutZeroing) {
  Fixture f(GetParam());
  const at::Tensor x = at::randn({5, 4});
  const at::Tensor expected = Expected(f.module, x);
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(f.reducer->BeginStep().ok());
    f.module.Loss(x).backward();
    ASSERT_TRUE(f.reducer->FinishBackward().ok());
    EXPECT_TRUE(f.module.last_weight.grad().equal(expected));
    EXPECT_TRUE(TensorOver(f.memory[0].grad).slice(0, 0, 24).equal(expected.flatten()));
  }
}

TEST(BucketCopiesTest, GradientsAreInTheirBucketWhenItIsLaunchedAndNotBefore) {
  Fixture f(BucketCopies::kTogether, {{3, 2}, {1, 0}});
  f.reducer.reset();
  std::vector<at::Tensor> at_launch;
  f.reducer = std::make_unique<BucketReducer>(
      f.plan, f.parameters,
      [&](int bucket) { at_launch.push_back(TensorOver(f.memory[bucket].grad).clone()); },
      [&](int parameter) {
        if (parameter != 3) return;
        EXPECT_EQ(f.module.last_weight.grad().abs().sum().item<float>(), 0);
      },
      BucketCopies::kTogether);
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.Loss(at::ones({2, 4})).backward();
  ASSERT_TRUE(f.reducer->FinishBackward().ok());
  ASSERT_EQ(at_launch.size(), 2u);
  for (int b : {0, 1}) EXPECT_TRUE(at_launch[b].equal(TensorOver(f.memory[b].grad)));
  EXPECT_TRUE(f.module.last_weight.grad().equal(Expected(f.module, at::ones({2, 4}))));
}

TEST_P(BucketReducerTest, NoSyncAddsUpMicroBatchesAndLaunchesNothing) {
  Fixture f(GetParam());
  const at::Tensor x = at::randn({5, 4}), y = at::randn({5, 4});
  const at::Tensor expected = Expected(f.module, x) + Expected(f.module, y);
  for (int step = 0; step < 2; ++step) {
    f.launched.clear();
    // Once before the step begins and once within.
    if (step == 1) {
      ASSERT_TRUE(f.reducer->BeginStep().ok());
    }
    f.reducer->EnterNoSync();
    f.module.Loss(x).backward();
    f.reducer->LeaveNoSync();
    EXPECT_THAT(f.launched, IsEmpty());
    if (step == 0) {
      ASSERT_TRUE(f.reducer->BeginStep().ok());
    }
    f.module.Loss(y).backward();
    EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
    ASSERT_TRUE(f.reducer->FinishBackward().ok());
    EXPECT_TRUE(f.module.last_weight.grad().equal(expected));
  }
}

// As threads do that each have some of the parameters: one is at its last micro-batch, the other at
// its first of two.
TEST_P(BucketReducerTest, NoSyncOfSomeParametersHoldsThoseAlone) {
  Fixture f(GetParam(), {{3, 2}, {1, 0}});
  const at::Tensor x = at::randn({5, 4}), hidden = at::randn({5, 8});
  const auto first_layer = [&] {
    at::linear(x, f.module.first_weight, f.module.first_bias).pow(2).mean().backward();
  };
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  first_layer();
  ASSERT_FALSE(f.reducer->FinishBackward().ok());
  const at::Tensor once = f.module.first_weight.grad().clone();

  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.reducer->EnterNoSync({0, 1});
  first_layer();
  at::linear(hidden * f.module.scale, f.module.last_weight).pow(2).mean().backward();
  EXPECT_THAT(f.launched, ElementsAre(0));
  f.reducer->LeaveNoSync({0, 1});
  first_layer();
  EXPECT_THAT(f.launched, ElementsAre(0, 1));
  EXPECT_TRUE(f.reducer->FinishBackward().ok());
  EXPECT_TRUE(f.module.first_weight.grad().equal(once + once));
}

TEST_P(BucketReducerTest, AParameterUsedManyTimesInOneBackwardIsFine) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  (f.module.Loss(at::ones({2, 4})) + f.module.Loss(at::ones({1, 4}))).backward();
  EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
  EXPECT_TRUE(f.reducer->FinishBackward().ok());
}

TEST_P(BucketReducerTest, UnusedParametersAreNamedAndTheNextStepStartsAfresh) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  (f.module.last_weight.sum() + f.module.first_weight.sum()).backward();
  EXPECT_THAT(f.launched, ElementsAre(0));
  const absl::Status status = f.reducer->FinishBackward();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("none for first_bias, scale"));

  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.Loss(at::ones({2, 4})).backward();
  EXPECT_TRUE(f.reducer->FinishBackward().ok());
}

TEST_P(BucketReducerTest, WhatGotNoGradientCountsAsZeroWhereThatIsAskedFor) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.Loss(at::ones({2, 4})).backward();  // leaves gradients in all places
  ASSERT_TRUE(f.reducer->FinishBackward().ok());
  for (int step = 0; step < 2; ++step) {
    f.launched.clear();
    ASSERT_TRUE(f.reducer->BeginStep().ok());
    (f.module.last_weight.sum() + f.module.first_weight.sum()).backward();
    EXPECT_THAT(f.launched, ElementsAre(0));
    f.reducer->CompleteWithZeros();
    EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
    EXPECT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
    EXPECT_TRUE(f.module.first_weight.grad().equal(at::ones({8, 4})));
    EXPECT_TRUE(f.module.first_bias.grad().equal(at::zeros({8})));
    EXPECT_TRUE(f.module.scale.grad().equal(at::zeros({8})));
  }
}

TEST_P(BucketReducerTest, AStepMayBeOfZerosAloneAndOfWhatNoSyncHasAddedUp) {
  Fixture f(GetParam());
  f.reducer->EnterNoSync();
  f.module.scale.sum().backward();
  f.reducer->LeaveNoSync();
  f.reducer->CompleteWithZeros();  // no step is under way
  EXPECT_THAT(f.launched, IsEmpty());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.reducer->CompleteWithZeros();
  EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
  EXPECT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
  EXPECT_TRUE(f.module.scale.grad().equal(at::ones({8})));
  EXPECT_TRUE(f.module.last_weight.grad().equal(at::zeros({3, 8})));
}

// They came back with what no_sync had added up before, although zero_grad() had dropped it.
TEST_P(BucketReducerTest, AGradientThatWasSetToNoneStartsAfresh) {
  Fixture f(GetParam());
  f.reducer.reset();
  f.reducer = std::make_unique<BucketReducer>(
      f.plan, f.parameters, [&f](int b) { f.launched.push_back(b); }, nullptr, GetParam(), nullptr,
      [] { return absl::OkStatus(); });
  const at::Tensor x = at::randn({5, 4});
  const at::Tensor expected = Expected(f.module, x);
  f.reducer->EnterNoSync();
  f.module.Loss(at::randn({5, 4})).backward();
  f.reducer->LeaveNoSync();
  f.module.zero_grad(/*set_to_none=*/true);
  f.module.Loss(x).backward();
  EXPECT_EQ(f.reducer->FinishBackward(), absl::OkStatus());
  EXPECT_THAT(f.launched, ElementsAre(0, 1, 2));
  EXPECT_TRUE(f.module.last_weight.grad().equal(expected));
}

TEST_P(BucketReducerTest, ASecondBackwardNamesTheParameterAndLeavesLaunchedMemoryAlone) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.Loss(at::ones({2, 4})).backward();
  const at::Tensor before = f.module.scale.grad().clone();
  f.module.scale.sum().backward();
  EXPECT_TRUE(f.module.scale.grad().equal(before));
  const absl::Status status = f.reducer->FinishBackward();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("scale"), HasSubstr("twice")));
}

TEST_P(BucketReducerTest, ABackwardOutsideOfStepsIsFoundAtTheNext) {
  Fixture f(GetParam());
  f.module.Loss(at::ones({2, 4})).backward();
  const absl::Status status = f.reducer->BeginStep();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("outside of a step"));
}

TEST_P(BucketReducerTest, AStepWithoutBackwardOrUnderNoSyncIsRefused) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  EXPECT_THAT(f.reducer->FinishBackward().message(), HasSubstr("no parameter got a gradient"));
  EXPECT_THAT(f.reducer->FinishBackward().message(), HasSubstr("no step is under way"));
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  EXPECT_THAT(f.reducer->BeginStep().message(), HasSubstr("FinishStep"));
  f.reducer->EnterNoSync();
  EXPECT_THAT(f.reducer->FinishBackward().message(), HasSubstr("NoSync"));
  f.reducer->LeaveNoSync();
}

TEST_P(BucketReducerTest, AGradientSetToNoneWithinTheStepIsNamed) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  f.module.scale.mutable_grad() = at::Tensor();
  f.module.Loss(at::ones({2, 4})).backward();
  EXPECT_THAT(f.launched, ElementsAre(0));
  EXPECT_THAT(f.reducer->FinishBackward().message(), HasSubstr("gradient of parameter scale"));
}

TEST_P(BucketReducerTest, TheUsersTensorHooksSeeAndChangeGradients) {
  Fixture f(GetParam());
  const at::Tensor x = at::randn({5, 4}), y = at::randn({5, 4});
  f.module.last_weight.register_hook([](at::Tensor grad) { return grad * 2; });
  for (int step = 0; step < 2; ++step) {
    f.reducer->EnterNoSync();
    f.module.Loss(x).backward();
    f.reducer->LeaveNoSync();
    ASSERT_TRUE(f.reducer->BeginStep().ok());
    f.module.Loss(y).backward();
    ASSERT_TRUE(f.reducer->FinishBackward().ok());
    EXPECT_TRUE(
        f.module.last_weight.grad().equal(2 * Expected(f.module, x) + 2 * Expected(f.module, y)));
  }
}

TEST_P(BucketReducerTest, ASparseGradientIsRefusedByName) {
  Fixture f(GetParam());
  ASSERT_TRUE(f.reducer->BeginStep().ok());
  const at::Tensor rows = at::embedding(f.module.first_weight, at::tensor({0, 1}, at::kLong),
                                        /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                                        /*sparse=*/true);
  rows.sum().backward();
  const absl::Status status = f.reducer->FinishBackward();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("first_weight"), HasSubstr("sparse")));
}

TEST_P(BucketReducerTest, AGraphThatOutlivesTheReducerFindsItsHooksInactive) {
  Fixture f(GetParam());
  const at::Tensor loss = f.module.Loss(at::ones({2, 4}));
  f.reducer.reset();
  f.module.last_weight.mutable_grad().zero_();
  loss.backward();
  EXPECT_THAT(f.launched, IsEmpty());
  EXPECT_TRUE(f.module.last_weight.grad().equal(Expected(f.module, at::ones({2, 4}))));
}

}  // namespace
}  // namespace gradsync
