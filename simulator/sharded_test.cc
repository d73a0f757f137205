// Steps whose buckets share memory: what owners keep for all.

#include <algorithm>
#include <string>
#include <vector>

#include "core/plan/cost_model.h"
#include "core/plan/kinds.h"
#include "core/plan/sharding.h"
#include "core/plan/step_order.h"
#include "core/plan/wire_traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/clusters_of_test.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

struct Job {
  Plan plan;
  ComputeTimes times;
};

// Units of equal size and time, a bucket each, the last unit's first; `megabytes` in all.
Job JobOf(int n, int units, double megabytes, BucketSlots slots, double seconds = 0,
          int64_t chunk_bytes = 0) {
  const auto numel = static_cast<int64_t>(megabytes * 1e6 / 4 / units);
  Job job;
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  job.times.units.resize(units);
  for (int b = 0; b < units; ++b) {
    tensors.push_back({"t" + std::to_string(b), {numel}, {1}, 0});
    buckets.push_back({b});
    job.times.units[units - 1 - b] = {b};
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  job.plan = *Plan::FromBuckets(tensors, buckets, optimizer, n, chunk_bytes)->WithSlots(slots);
  job.times.forward = seconds / 3;
  job.times.backward = 2 * seconds / 3;
  for (int u = 0; u < units; ++u) job.times.turn_begin.push_back(job.times.forward * u / units);
  for (int u = 0; u < units; ++u) {
    const double begin = job.times.forward + job.times.backward * u / units;
    job.times.turn_begin.push_back(begin);
    job.times.bucket_begin.push_back(begin);
    job.times.bucket_ready.push_back(begin + job.times.backward / units);
  }
  return job;
}

BucketSlots Slots(int zero) {
  BucketSlots slots;
  if (zero >= 2) slots.gradients = 2;
  if (zero >= 3) slots.parameters = 2;
  return slots;
}

Cluster Ring() {
  Cluster cluster = FreeMessages();
  cluster.returned = Returned::kParameters;
  return cluster;
}

Cluster Servers(Placement placement, int servers) {
  return WithServers(Ring(), placement, servers);
}

double StepOf(const Job& job, const Cluster& cluster) {
  const auto step = SimulateStep(job.plan, cluster, job.times);
  EXPECT_TRUE(step.ok()) << step.status();
  return step.ok() ? step->step : 0;
}

TEST(ShardedTest, BytesAreExactlyThoseOfThePlan) {
  for (int n : {1, 2, 3, 4, 7}) {
    const Job job = JobOf(n, 5, 1.000003, Slots(3), /*seconds=*/0.01, /*chunk_bytes=*/4096);
    const std::vector<int> gathers = GathersOfStep(job.plan, job.times.units);
    for (Cluster cluster : AllClusters(Ring(), n)) {
      cluster.constants = LinkConstants();
      const auto step = SimulateStep(job.plan, cluster, job.times);
      ASSERT_TRUE(step.ok()) << NameOf(cluster, n) << ": " << step.status();
      EXPECT_EQ(step->method, SimulationMethod::kChunks);
      const std::vector<Flow> flows =
          cluster.ring
              ? RingShardedStepFlows(job.plan, gathers)
              : PsShardedStepFlows(job.plan, *ShardMap::Create(job.plan, ServerWeights(cluster, n)),
                                   gathers);
      EXPECT_EQ(std::max(step->tx_bytes_max_host, step->rx_bytes_max_host),
                BusiestBytes(HostTraffic(flows, ProcessHosts(cluster, n))))
          << NameOf(cluster, n);
    }
  }
}

// Of 16 units the last two stay for backward.
TEST(ShardedTest, ARingSendsThreeTimesItsPartOfEverythingLessWhatStays) {
  const int units = 16;
  for (int n : {2, 4, 8}) {
    const Job job = JobOf(n, units, 64, Slots(3));
    const auto step = SimulateStep(job.plan, Ring(), job.times);
    ASSERT_TRUE(step.ok()) << step.status();
    const double part = (n - 1.0) / n * static_cast<double>(job.plan.total_bytes());
    EXPECT_NEAR(step->tx_bytes_max_host, (3 - 2.0 / units) * part, 0.001 * part) << n;
    EXPECT_NEAR(ShardedRingLoad(n), 3 * (n - 1.0) / n, 1e-12);
  }
}

// Nothing is computed, so that links never rest but where a unit waits for its parameters.
TEST(ShardedTest, StepsOfCommunicationAloneTakeWhatTheClosedFormsSay) {
  const int units = 16;
  const double megabytes = 100;
  const double kept = 2.0 / units;  // of everything, which is not gathered again
  for (int n : {2, 4, 8}) {
    const Job job = JobOf(n, units, megabytes, Slots(3));
    const double all = static_cast<double>(job.plan.total_bytes()) / kTestRate;
    const double ring = (3 - kept) * (n - 1) / n * all;
    EXPECT_GE(StepOf(job, Ring()), 0.999 * ring) << n;
    EXPECT_LE(StepOf(job, Ring()), 1.02 * ring) << n;
    for (int k : {1, n / 2, n, 2 * n}) {
      const double servers = (2 - kept) * std::max(1.0, static_cast<double>(n) / k) * all;
      const double time = StepOf(job, Servers(Placement::kDedicated, k));
      EXPECT_GE(time, 0.999 * servers) << n << " and " << k;
      // After the last gather gradients still go the other way.
      EXPECT_LE(time, 1.08 * servers) << n << " and " << k;
    }
    EXPECT_NEAR(StepOf(job, Servers(Placement::kColocated, n)) / ring, 1, 0.1) << n;
  }
}

TEST(ShardedTest, ServersOnHostsOfTheirOwnBeatTheRingWhereTheLoadSaysSo) {
  for (int n : {3, 4, 6, 8}) {
    const Job job = JobOf(n, 64, 100, Slots(3));
    const double ring = StepOf(job, Ring());
    for (int k = 1; k <= n + 1; ++k) {
      EXPECT_EQ(StepOf(job, Servers(Placement::kDedicated, k)) < ring,
                DedicatedPsBeatsShardedRing(n, k))
          << n << " and " << k;
    }
  }
}

// A notice behind parameters that were asked for meanwhile holds up the gradients that need the
// memory: for want of it servers lost what their interfaces gain.
TEST(ShardedTest, NoticesBehindParametersWouldMakeServersSlowerThanTheRing) {
  const Job job = JobOf(4, 16, 100, Slots(3));
  Cluster servers = Servers(Placement::kDedicated, 4);
  const double ring = StepOf(job, Ring());
  EXPECT_LT(StepOf(job, servers), 0.95 * ring);
  servers.urgent_notices = false;
  EXPECT_GT(StepOf(job, servers), 1.1 * ring);
}

TEST(ShardedTest, ComputationHidesGathersButTheFirst) {
  Cluster fast = Ring();
  fast.bytes_per_second = 1e10;
  const Job job = JobOf(4, 16, 16, Slots(3), /*seconds=*/1);
  // And the last bucket's gradients.
  const double once = 0.75 * 1e6 / fast.bytes_per_second;
  EXPECT_NEAR(StepOf(job, fast), 1 + 2 * once, 0.5 * once);
}

TEST(ShardedTest, TwoBucketsOfGradientsAreAsGoodAsAllUntilBackwardHasToWait) {
  for (Cluster cluster : {Ring(), Servers(Placement::kDedicated, 2)}) {
    const auto step = [&cluster](int zero, bool first_ones_early) {
      Job job = JobOf(4, 6, 60, Slots(zero), /*seconds=*/1.5);
      if (!first_ones_early) return StepOf(job, cluster);
      job.times.bucket_begin = {0.5, 0.51, 0.52, 0.53, 0.54, 1};
      job.times.bucket_ready = {0.51, 0.52, 0.53, 0.54, 1, 1.5};
      return StepOf(job, cluster);
    };
    EXPECT_NEAR(step(2, false), step(0, false), 1e-9) << NameOf(cluster, 4);
    // Three buckets that wait for those before stop what would have hidden them.
    const double exchange = (cluster.ring ? 1.5 : 2) * 10e6 / kTestRate;
    EXPECT_NEAR(step(2, true) - step(0, true), 3 * exchange, 0.3 * exchange) << NameOf(cluster, 4);
  }
}

TEST(ShardedTest, ManyStepsOfStragglersEnd) {
  Job job = JobOf(3, 6, 4, Slots(3), 0.1);
  for (Cluster cluster :
       {Ring(), Servers(Placement::kDedicated, 2), Servers(Placement::kMixed, 1)}) {
    cluster.constants = LinkConstants();
    cluster.slowness = {1, 2, 1};
    const auto rate = SimulateSteps(job.plan, cluster, job.times, 5, nullptr);
    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_GT(rate->steps_per_second, 0);
    EXPECT_LT(rate->steps_per_second, 1 / 0.2);
  }
}

TEST(ShardedTest, WhatCannotBeIsRefused) {
  const Job job = JobOf(2, 3, 1, Slots(3), 0.1);
  const auto error = [](const Job& bad, const Cluster& cluster) {
    return std::string(SimulateStep(bad.plan, cluster, bad.times).status().message());
  };
  Cluster workers_update = Ring();
  workers_update.returned = Returned::kMean;
  EXPECT_THAT(error(job, workers_update), HasSubstr("expected owners to update"));
  Job bad = job;
  bad.times.units[1].clear();
  EXPECT_THAT(error(bad, Ring()), HasSubstr("units: expected each bucket in one, found 1 in none"));
  bad = job;
  bad.times.turn_begin.pop_back();
  EXPECT_THAT(error(bad, Ring()), HasSubstr("turns: expected 6, two for each unit, found 5"));
  bad = job;
  bad.times.turn_begin[2] = 1;
  EXPECT_THAT(error(bad, Ring()), HasSubstr("turns: expected between"));
  bad = job;
  bad.times.bucket_begin[0] = -1;
  EXPECT_THAT(error(bad, Ring()), HasSubstr("first gradients: expected between"));
  EXPECT_THAT(
      std::string(
          SimulateStep(job.plan, Ring(), job.times, SimulationMethod::kFluid).status().message()),
      HasSubstr("fluid: expected buckets with memory of their own"));
}

}  // namespace
}  // namespace gradsync
