#include "worker/models/batch_statistics.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/randn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

at::Tensor Buffer(const BatchNorm2d& norm, const char* name) { return norm.named_buffers()[name]; }

// Unequal ones, the last the smallest, as at the end of an epoch.
TEST(PooledMomentsTest, BatchesOfAStepLeaveTheStatisticsOfOneBatchOfAll) {
  at::manual_seed(1);
  const at::Tensor all = 100 + 3 * at::randn({8, 4, 5, 5});
  BatchNorm2d whole(4), pooled(4);
  for (int step = 1; step <= 2; ++step) {
    whole.forward(all);
    PoolStatistics(pooled, true);
    const at::Tensor before = Buffer(pooled, "running_mean").clone();
    for (const at::Tensor& part : all.split_with_sizes({4, 3, 1})) {
      BatchNorm2d plain(4);
      EXPECT_TRUE(pooled.forward(part).equal(plain.forward(part)));
    }
    EXPECT_TRUE(Buffer(pooled, "running_mean").equal(before));
    PoolStatistics(pooled, false);
    for (const char* name : {"running_mean", "running_var"}) {
      EXPECT_TRUE(at::allclose(Buffer(pooled, name), Buffer(whole, name), /*rtol=*/1e-5)) << name;
    }
    EXPECT_EQ(Buffer(pooled, "num_batches_tracked").item<int64_t>(), step);
  }
}

// What is computed again in backward was counted before, and an evaluation counts nothing.
TEST(PooledMomentsTest, OnlyTrainingIsPooledAndOnce) {
  const at::Tensor x = at::randn({2, 3, 4, 4});
  BatchNorm2d once(3), twice(3);
  PoolStatistics(once, true);
  once.forward(x);
  PoolStatistics(once, false);
  PoolStatistics(twice, true);
  twice.forward(x);
  twice.set_recomputing(true);
  twice.forward(3 * x);
  twice.set_recomputing(false);
  twice.eval();
  twice.forward(5 * x);
  twice.train();
  PoolStatistics(twice, false);
  EXPECT_TRUE(Buffer(twice, "running_var").equal(Buffer(once, "running_var")));
  PoolStatistics(twice, true);
  PoolStatistics(twice, false);
  EXPECT_EQ(Buffer(twice, "num_batches_tracked").item<int64_t>(), 1);
}

constexpr int kReplicas = 3;
constexpr int kSteps = 4;

// Two layers, one behind the other.
class TwoNorms : public torch::nn::Module {
 public:
  TwoNorms()
      : first_(register_module("first", std::make_shared<BatchNorm2d>(5))),
        second_(register_module("second", std::make_shared<BatchNorm2d>(5))) {}

  at::Tensor forward(const at::Tensor& x) { return second_->forward(first_->forward(x).pow(2)); }

 private:
  const std::shared_ptr<BatchNorm2d> first_, second_;
};

at::Tensor Input(int step, int replica) {
  at::Generator generator = MakeGenerator(100 * step + replica);
  return at::randn({4, 5, 3, 3}, generator);
}

// Without regard to who is ready first: the highest replica is started first.
TEST(StatisticsTurnsTest, StatisticsHaveTheBitsOfOneModelThatSeesThePartsInOrder) {
  TwoNorms serial;
  std::vector<TwoNorms> replicas(kReplicas);
  StatisticsTurns turns;
  ShareStatistics({&replicas[0], &replicas[1], &replicas[2]}, &turns);
  for (int step = 0; step < kSteps; ++step) {
    // The last step has a part less.
    const int active = step + 1 < kSteps ? kReplicas : kReplicas - 1;
    std::vector<at::Tensor> expected, found(active);
    for (int r = 0; r < active; ++r) expected.push_back(serial.forward(Input(step, r)));
    turns.Begin();
    std::vector<std::thread> threads;
    for (int r = active - 1; r >= 0; --r) {
      threads.emplace_back([&, r] { found[r] = replicas[r].forward(Input(step, r)); });
    }
    for (std::thread& thread : threads) thread.join();
    turns.End();
    for (int r = 0; r < active; ++r) EXPECT_TRUE(at::equal(found[r], expected[r]));
  }
  for (const auto& buffer : serial.named_buffers()) {
    EXPECT_TRUE(at::equal(replicas[0].named_buffers()[buffer.key()], buffer.value()))
        << buffer.key();
  }
}

TEST(StatisticsTurnsTest, BetweenStepsAReplicaComputesAlone) {
  TwoNorms replica;
  StatisticsTurns turns;
  ShareStatistics({&replica}, &turns);
  for (int i = 0; i < 2; ++i) replica.forward(Input(0, 0));
  EXPECT_EQ(replica.named_buffers()["first.num_batches_tracked"].item<int64_t>(), 2);
}

TEST(StatisticsTurnsTest, AReplicaThatWillNotComeEndsTheWaitOfTheOthers) {
  StatisticsTurns turns;
  turns.Begin();
  std::string error;
  std::thread waiting([&] {
    try {
      turns.Await(0, 1);
    } catch (const std::exception& e) {
      error = e.what();
    }
  });
  turns.Abandon();
  waiting.join();
  EXPECT_THAT(error, HasSubstr("another replica failed"));
  turns.Begin();
  turns.Await(0, 0);
}

TEST(StatisticsTurnsTest, ALayerThatIsUsedTwiceIsAnErrorAndNoHang) {
  StatisticsTurns turns;
  turns.Begin();
  turns.Await(0, 0);
  turns.Pass(0);
  EXPECT_THROW(turns.Await(0, 0), c10::Error);
}

}  // namespace
}  // namespace gradsync
