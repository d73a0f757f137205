#include "core/plan/cost_model.h"

#include "core/plan/wire_traffic.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr double kRounding = 1e-12;

// `numel` elements in equal buckets, of stripes with chunks of 64 elements.
Plan EqualChunks(int n, int stripes, int buckets) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> lists;
  for (int b = 0; b < buckets; ++b) {
    tensors.push_back({std::string(1, static_cast<char>('a' + b)), {64 * n * stripes}, {1}, 0});
    lists.push_back({b});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, lists, optimizer, n, 256);
}

double Load(const Plan& plan, const std::vector<Flow>& flows, const std::vector<int>& hosts) {
  return static_cast<double>(BusiestBytes(HostTraffic(flows, hosts))) / plan.total_bytes();
}

double PsLoad(const Plan& plan, const std::vector<double>& weights, const std::vector<int>& hosts) {
  return Load(plan, PsStepFlows(plan, *ShardMap::Create(plan, weights)), hosts);
}

TEST(CostModelTest, ARingsExactBytesAreTheClosedFormWhenChunksAreEqual) {
  for (int n = 1; n <= 17; ++n) {
    const Plan plan = EqualChunks(n, 3, 2);
    EXPECT_NEAR(Load(plan, RingStepFlows(plan), DedicatedHosts(n, 0)), RingLoad(n), kRounding) << n;
  }
}

TEST(CostModelTest, DedicatedServersExactBytesAreTheClosedFormWhenServersDivideTheChunks) {
  for (int n = 1; n <= 8; ++n) {
    for (int k = 1; k <= 9; ++k) {
      const Plan plan = EqualChunks(n, k, 2);
      EXPECT_NEAR(PsLoad(plan, std::vector<double>(k, 1), DedicatedHosts(n, k)),
                  DedicatedPsLoad(n, k), kRounding)
          << "n " << n << " k " << k;
    }
  }
}

TEST(CostModelTest, ColocatedServersExactBytesAreTheClosedFormWhenServersDivideTheChunks) {
  for (int n = 1; n <= 9; ++n) {
    for (int k = 1; k <= n; ++k) {
      const Plan plan = EqualChunks(n, k, 2);
      EXPECT_NEAR(PsLoad(plan, std::vector<double>(k, 1), ColocatedHosts(n, k)),
                  ColocatedPsLoad(n, k), kRounding)
          << "n " << n << " k " << k;
    }
  }
}

// With unequal weights the shard map gives a server at most (servers - 1) * its share chunks too
// many, here less than two, and each is moved at most n times.
TEST(CostModelTest, MixedServersExactBytesApproachTheClosedFormAsTheGradientGrows) {
  for (int n = 2; n <= 8; ++n) {
    for (int k = 0; k < n; ++k) {
      for (int stripes : {10, 100, 1000}) {
        const Plan plan = EqualChunks(n, stripes, 1);
        const double load = PsLoad(plan, MixedWeights(n, k), MixedHosts(n, n + k));
        const double a_chunk = 1.0 / (n * stripes);
        EXPECT_NEAR(load, MixedPsLoad(n, k), 2 * n * a_chunk)
            << "n " << n << " k " << k << " stripes " << stripes;
      }
    }
  }
}

TEST(CostModelTest, ExactBytesOfUnevenPlansApproachTheClosedFormsAsTheGradientGrows) {
  for (int n : {2, 3, 5, 8}) {
    for (int64_t numel : {int64_t{10007}, int64_t{100003}, int64_t{1000003}}) {
      OptimizerSpec optimizer;
      optimizer.groups.resize(1);
      const Plan plan =
          *Plan::FromBuckets({{"a", {numel}, {1}, 0}}, {{0}}, optimizer, n, /*chunk_bytes=*/256);
      // The tail: less than a stripe is cut short, on one host twice.
      const double tolerance = 2.0 * n * 256 / plan.total_bytes();
      EXPECT_NEAR(Load(plan, RingStepFlows(plan), DedicatedHosts(n, 0)), RingLoad(n), tolerance);
      for (int k = 1; k <= 3; ++k) {
        EXPECT_NEAR(PsLoad(plan, std::vector<double>(k, 1), DedicatedHosts(n, k)),
                    DedicatedPsLoad(n, k), tolerance);
      }
    }
  }
}

TEST(CostModelTest, MixedSharesAddUpToOneAndKeepAllHostsEquallyBusy) {
  for (int n = 2; n <= 64; ++n) {
    for (int k = 0; k < n; ++k) {
      const ServerShares shares = MixedShares(n, k);
      EXPECT_NEAR(n * shares.colocated + k * shares.dedicated, 1, kRounding);
      EXPECT_NEAR((n - 2) * shares.colocated + 1, MixedPsLoad(n, k), kRounding);
      if (k > 0) {
        EXPECT_NEAR(n * shares.dedicated, MixedPsLoad(n, k), kRounding);
      }
    }
  }
}

TEST(CostModelTest, MixedPlacementRunsFromTheRingToOneGradientPerHost) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_NEAR(MixedPsLoad(n, 0), RingLoad(n), kRounding);
    EXPECT_NEAR(MixedPsLoad(n, n), 1, kRounding);
    EXPECT_NEAR(MixedPsLoad(n, n - 1), 1, 1.0 / n);
    EXPECT_NEAR(MixedShares(n, n).dedicated, 1.0 / n, kRounding);
    for (int k = 1; k <= n; ++k) EXPECT_LE(MixedPsLoad(n, k), MixedPsLoad(n, k - 1));
  }
}

TEST(CostModelTest, ServersOnAllWorkersHostsLoadThemAsARing) {
  for (int n = 1; n <= 64; ++n) EXPECT_NEAR(ColocatedPsLoad(n, n), RingLoad(n), kRounding);
}

TEST(CostModelTest, DedicatedServersWinExactlyWhereTheirLoadIsSmaller) {
  for (int n = 1; n <= 64; ++n) {
    for (int k = 1; k <= 64; ++k) {
      EXPECT_EQ(DedicatedPsBeatsRing(n, k), DedicatedPsLoad(n, k) < RingLoad(n) - kRounding)
          << "n " << n << " k " << k;
    }
  }
  EXPECT_FALSE(DedicatedPsBeatsRing(2, 100));
  EXPECT_FALSE(DedicatedPsBeatsRing(4, 2));
  EXPECT_TRUE(DedicatedPsBeatsRing(4, 3));
}

TEST(CostModelTest, WhereOwnersAloneKeepParametersServersWinExactlyWhereTheirLoadIsSmaller) {
  for (int n = 1; n <= 64; ++n) {
    for (int k = 1; k <= 64; ++k) {
      EXPECT_EQ(DedicatedPsBeatsShardedRing(n, k),
                ShardedDedicatedPsLoad(n, k) < ShardedRingLoad(n) - kRounding)
          << "n " << n << " k " << k;
    }
  }
  EXPECT_FALSE(DedicatedPsBeatsShardedRing(3, 100));
  EXPECT_FALSE(DedicatedPsBeatsShardedRing(4, 3));
  EXPECT_TRUE(DedicatedPsBeatsShardedRing(4, 4));
}

// Beside all workers it is the ring's; with as many hosts more as workers that of dedicated ones.
TEST(CostModelTest, ServersThatKeepParametersBesideWorkersLoadThemAsARing) {
  for (int n = 2; n <= 64; ++n) {
    EXPECT_NEAR(ShardedColocatedPsLoad(n, n), ShardedRingLoad(n), kRounding);
    EXPECT_NEAR(ShardedMixedPsLoad(n, 0), ShardedRingLoad(n), kRounding);
    EXPECT_NEAR(ShardedMixedPsLoad(n, n), ShardedDedicatedPsLoad(n, n), kRounding);
    for (int k = 1; k < n; ++k) {
      EXPECT_GE(ShardedColocatedPsLoad(n, k), ShardedColocatedPsLoad(n, k + 1)) << n << " " << k;
    }
  }
}

TEST(CostModelTest, OneWorkerWithItsServerExchangesNothing) {
  EXPECT_EQ(RingLoad(1), 0);
  EXPECT_EQ(ColocatedPsLoad(1, 1), 0);
  EXPECT_EQ(MixedPsLoad(1, 0), 0);
}

TEST(CostModelTest, TimeIsBytesOneStripeAndMessages) {
  ExchangeCost cost;
  cost.bytes = 100e6;
  cost.bytes_per_second = 1e9;
  EXPECT_DOUBLE_EQ(ExchangeSeconds(1.5, cost), 0.15);
  cost.stripe_bytes = 1e6;
  EXPECT_DOUBLE_EQ(ExchangeSeconds(1.5, cost), 0.1515);
  cost.chunk_bytes = 250e3;
  EXPECT_DOUBLE_EQ(ExchangeSeconds(1.5, cost), 0.1515);
  cost.seconds_per_message = 10e-6;
  EXPECT_DOUBLE_EQ(ExchangeSeconds(1.5, cost), 0.1515 + 1.5 * 400 * 10e-6);
}

}  // namespace
}  // namespace gradsync
