#include "worker/models/pooled_moments.h"

#include "ATen/Functions.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

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

}  // namespace
}  // namespace gradsync
