#include "simulator/simulate.h"

#include <string>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/plan/cost_model.h"
#include "core/plan/wire_traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/clusters_of_test.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// 100 MB in equal buckets of about 25 MiB, with the default chunks unless they are given.
Plan PlanOf(int n, double megabytes = 100, int64_t chunk_bytes = 0, Codec codec = Codec()) {
  const auto numel = static_cast<int64_t>(megabytes * 1e6 / 4 / 4);
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  for (int b = 0; b < 4; ++b) {
    tensors.push_back({std::string(1, static_cast<char>('a' + b)), {numel}, {1}, 0});
    buckets.push_back({b});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, buckets, optimizer, n, chunk_bytes, codec);
}

Cluster Servers(Placement placement, int servers) {
  return WithServers(FreeMessages(), placement, servers);
}

double Load(const Cluster& cluster, int n) {
  if (cluster.ring) return RingLoad(n);
  switch (cluster.placement) {
    case Placement::kNone:
    case Placement::kDedicated:
      return DedicatedPsLoad(n, cluster.servers);
    case Placement::kColocated:
      return ColocatedPsLoad(n, cluster.servers);
    case Placement::kMixed:
      return MixedPsLoad(n, cluster.servers);
  }
  return 0;
}

// A step of which backward takes two thirds.
ComputeTimes HalfASecond() {
  ComputeTimes times;
  times.forward = 0.2;
  times.backward = 0.4;
  times.update = 0.05;
  times.bucket_ready = {0.3, 0.4, 0.5, 0.6};
  return times;
}

double StripeBytes(const Plan& plan) {
  const StripeLayout& layout = plan.buckets()[0].layout;
  return 4.0 * layout.chunk_elements() * layout.world_size();
}

// One stripe fills and drains the pipeline, more where a stripe's chunks do not use all connections
// (fluid.cc). Where servers do not own equally many chunks of each stripe, workers get out of
// step, at most by their lead, since a chunk is folded when all have sent it. With servers beside
// some workers those need their even share of the interface to the last bit, and do not get it
// while they wait for results: up to 1 %. Mixed placement needs
// bandwidth in proportion to what servers own, which whole numbers of streams only come near.
TEST(SimulateTest, LargeExchangesTakeWhatTheClosedFormsSayWithinTheFill) {
  for (int n : {2, 4, 8, 16}) {
    const Plan plan = PlanOf(n);
    const double stripe = StripeBytes(plan) / static_cast<double>(plan.total_bytes());
    for (const Cluster& cluster : AllClusters(FreeMessages(), n)) {
      const double best = Load(cluster, n) * static_cast<double>(plan.total_bytes()) / kTestRate;
      const double time = *SimulateExchange(plan, cluster, SimulationMethod::kChunks);
      double most = 1 + 1.3 * stripe;
      if (!cluster.ring && cluster.placement == Placement::kDedicated) {
        const bool even = n % cluster.servers == 0 || cluster.servers % n == 0;
        most += stripe * (even ? cluster.ps_connections : 2 * cluster.ps_connections) *
                cluster.servers / n;
      }
      if (!cluster.ring && cluster.placement == Placement::kColocated && cluster.servers > 1 &&
          cluster.servers < n) {
        most += 0.01;
      }
      if (!cluster.ring && cluster.placement == Placement::kMixed) most = 1.15;
      EXPECT_GE(time, best * 0.9999) << NameOf(cluster, n);
      EXPECT_LE(time, best * most) << NameOf(cluster, n);
    }
  }
}

// Two chunks for each stream are all that it takes: one that is sent, and one that waits for other
// workers' part. With fewer, streams are without chunks at times.
TEST(SimulateTest, AShorterLeadCostsTimeAndALongerOneGainsNothing) {
  const Plan plan = PlanOf(16);
  for (Cluster cluster : {Servers(Placement::kDedicated, 16), Servers(Placement::kMixed, 8)}) {
    const auto time = [&](int lead) {
      cluster.lead = lead;
      return *SimulateExchange(plan, cluster, SimulationMethod::kChunks);
    };
    EXPECT_GT(time(1), 1.01 * time(2)) << NameOf(cluster, 16);
    EXPECT_GT(time(8), 0.99 * time(2)) << NameOf(cluster, 16);
  }
}

// A host that has a server and a worker sends the server's results to all and its worker's
// gradients to the other server. Were workers not held back by results, these would take the
// interface from the gradients that others wait for.
TEST(SimulateTest, ALeadKeepsTwoColocatedServersWithinTheFill) {
  const Plan plan = PlanOf(16);
  Cluster cluster = Servers(Placement::kColocated, 2);
  const double kept = *SimulateExchange(plan, cluster, SimulationMethod::kChunks);
  cluster.lead = 1000;
  EXPECT_GT(*SimulateExchange(plan, cluster, SimulationMethod::kChunks), 1.2 * kept);
}

TEST(SimulateTest, BytesAreExactlyThoseOfThePlan) {
  for (Codec codec : {Codec(), *ParseCodec("bf16"), *ParseCodec("topk:0.01")}) {
    for (Returned returned : {Returned::kMean, Returned::kParameters}) {
      for (int n : {1, 2, 3, 4, 7}) {
        const Plan plan = PlanOf(n, 1.000003, 4096, codec);
        for (Cluster cluster : AllClusters(FreeMessages(), n)) {
          if (cluster.ring && codec.sparse()) continue;
          cluster.returned = returned;
          ComputeTimes times;
          times.bucket_ready.assign(4, 0);
          const auto step = SimulateStep(plan, cluster, times, SimulationMethod::kChunks);
          ASSERT_TRUE(step.ok()) << step.status();
          const std::vector<Flow> flows =
              cluster.ring
                  ? RingStepFlows(plan, returned)
                  : PsStepFlows(plan, *ShardMap::Create(plan, ServerWeights(cluster, n)), returned);
          double tx = 0, rx = 0;
          for (const NodeTraffic& host : HostTraffic(flows, ProcessHosts(cluster, n))) {
            tx = std::max(tx, static_cast<double>(host.tx_bytes));
            rx = std::max(rx, static_cast<double>(host.rx_bytes));
          }
          EXPECT_EQ(step->tx_bytes_max_host, tx) << NameOf(cluster, n);
          EXPECT_EQ(step->rx_bytes_max_host, rx) << NameOf(cluster, n);
        }
      }
    }
  }
}

TEST(SimulateTest, AtFourWorkersDedicatedServersBeatTheRingFromThreeOn) {
  const Plan plan = PlanOf(4);
  const double ring = *SimulateExchange(plan, FreeMessages());
  for (int k : {1, 2, 3, 4}) {
    const double ps = *SimulateExchange(plan, Servers(Placement::kDedicated, k));
    EXPECT_EQ(ps < ring, k >= 3) << k;
    EXPECT_EQ(DedicatedPsBeatsRing(4, k), k >= 3);
  }
}

// At 64 workers one chunk in 16 of a stripe is a whole percent of these exchanges.
TEST(SimulateTest, FluidAgreesWithChunksWithinOnePercentAndSixWhenMixed) {
  for (int n : {16, 64}) {
    const Plan plan = PlanOf(n);
    std::vector<Cluster> clusters = {FreeMessages()};
    for (int k : {2, n / 2, n}) clusters.push_back(Servers(Placement::kDedicated, k));
    for (int k : {n / 4, n / 2, n}) clusters.push_back(Servers(Placement::kColocated, k));
    for (int k : {1, n / 2}) clusters.push_back(Servers(Placement::kMixed, k));
    for (Cluster cluster : clusters) {
      for (bool owner_updates : {false, true}) {
        if (owner_updates && n == 64) continue;
        cluster.constants = LinkConstants();
        cluster.returned = owner_updates ? Returned::kParameters : Returned::kMean;
        const ComputeTimes times = HalfASecond();
        const auto chunks = SimulateStep(plan, cluster, times, SimulationMethod::kChunks);
        const auto fluid = SimulateStep(plan, cluster, times, SimulationMethod::kFluid);
        ASSERT_TRUE(chunks.ok() && fluid.ok());
        const bool mixed = !cluster.ring && cluster.placement == Placement::kMixed;
        EXPECT_NEAR(fluid->step / chunks->step, 1, mixed ? 0.06 : 0.01)
            << NameOf(cluster, n) << owner_updates;
        EXPECT_NEAR(fluid->tx_bytes_max_host / chunks->tx_bytes_max_host, 1, 0.02);
        EXPECT_NEAR(fluid->busy_share, chunks->busy_share, mixed ? 0.05 : 0.03)
            << NameOf(cluster, n);
      }
    }
  }
}

TEST(SimulateTest, FourThousandWorkersTakeLessThanTwoSeconds) {
  const Plan plan = PlanOf(4096);
  for (Cluster cluster : {FreeMessages(), Servers(Placement::kDedicated, 512),
                          Servers(Placement::kColocated, 4096), Servers(Placement::kMixed, 1024)}) {
    cluster.constants = LinkConstants();
    const MonotonicTime start = MonotonicTime::Now();
    const auto step = SimulateStep(plan, cluster, HalfASecond());
    EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(2)) << NameOf(cluster, 4096);
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->method, SimulationMethod::kFluid);
    EXPECT_GT(step->step, 0.6 + 0.5 * Load(cluster, 4096)) << NameOf(cluster, 4096);
  }
}

TEST(SimulateTest, RepeatedSimulationsAreEqualToTheLastBit) {
  const Plan plan = PlanOf(5, 3.3);
  for (Cluster cluster : AllClusters(FreeMessages(), 5)) {
    cluster.constants = LinkConstants();
    const auto first = SimulateStep(plan, cluster, HalfASecond());
    const auto second = SimulateStep(plan, cluster, HalfASecond());
    EXPECT_EQ(first->step, second->step) << NameOf(cluster, 5);
  }
}

TEST(SimulateTest, CommunicationThatFitsBehindBackwardIsHidden) {
  const Plan plan = PlanOf(4, 4);
  Cluster cluster = FreeMessages();
  cluster.bytes_per_second = 1e9;
  ComputeTimes times = HalfASecond();
  times.bucket_ready = {0.3, 0.35, 0.4, 0.45};
  EXPECT_NEAR(SimulateStep(plan, cluster, times)->exposed, 0, 1e-12);
  EXPECT_NEAR(SimulateStep(plan, cluster, times)->step, 0.65, 1e-12);
  times.bucket_ready = {0.6, 0.6, 0.6, 0.6};  // the last is exposed but for the others' updates
  const auto late = SimulateStep(plan, cluster, times);
  EXPECT_NEAR(late->step, 0.6 + 0.05 + late->exposed, 1e-12);
  EXPECT_GT(late->exposed, 0.0015 / 4);
}

TEST(SimulateTest, ASlowWorkerDelaysAllOfThem) {
  const Plan plan = PlanOf(4, 4);
  Cluster cluster = FreeMessages();
  cluster.slowness = {1, 1, 3, 1};
  const auto step = SimulateStep(plan, cluster, HalfASecond());
  EXPECT_GT(step->step, 3 * 0.65);
  EXPECT_NEAR(step->backward, 3 * 0.4, 1e-12);
  EXPECT_EQ(SimulateStep(plan, cluster, HalfASecond(), SimulationMethod::kFluid).status().code(),
            absl::StatusCode::kInvalidArgument);
}

Cluster OneOfFourIsThreeTimesSlower(const std::string& consistency) {
  Cluster cluster = Servers(Placement::kDedicated, 2);
  cluster.bytes_per_second = 1e10;  // what counts is computing
  cluster.returned = Returned::kParameters;
  cluster.consistency = *ParseConsistency(consistency);
  cluster.slowness = {1, 1, 1, 3};
  return cluster;
}

// A fast worker makes three steps in the time of a slow one, if it may.
TEST(SimulateTest, StalenessLetsFastWorkersGoOnAsFarAsItsBound) {
  const Plan plan = PlanOf(4, 4);
  ComputeTimes times = HalfASecond();
  times.update = 0;
  const double slow = 1 / (3 * 0.6);
  const auto rate = [&](const std::string& consistency, int steps) {
    return *SimulateSteps(plan, OneOfFourIsThreeTimesSlower(consistency), times, steps);
  };
  EXPECT_NEAR(rate("bsp", 20).steps_per_second, slow, 0.02 * slow);
  EXPECT_NEAR(rate("ssp:0", 20).steps_per_second, slow, 0.02 * slow);
  const double all = (3 / 0.6 + slow) / 4;
  EXPECT_NEAR(rate("asp", 30).steps_per_second, all, 0.02 * all);
  EXPECT_GT(rate("asp", 30).max_staleness, 8);
  // Once the fast ones are as far ahead as they may be, all are as slow as the slowest.
  for (int bound : {2, 8}) {
    const GroupRate bounded = rate("ssp:" + std::to_string(bound), 200);
    EXPECT_EQ(bounded.max_staleness, bound);
    EXPECT_NEAR(bounded.steps_per_second, slow, 0.05 * slow);
    EXPECT_GT(bounded.steps_per_second, slow);
  }
}

// Each of four workers is slow in every fourth step, each in another one: only bsp always waits.
TEST(SimulateTest, SlownessMayDifferFromStepToStep) {
  const Plan plan = PlanOf(4, 4);
  ComputeTimes times = HalfASecond();
  times.update = 0;
  const auto seconds = [&](const std::string& consistency) {
    Cluster cluster = OneOfFourIsThreeTimesSlower(consistency);
    const auto rate = SimulateSteps(
        plan, cluster, times, 40, [](int rank, int step) { return step % 4 == rank ? 3.0 : 1.0; });
    return 1 / rate->steps_per_second;
  };
  EXPECT_NEAR(seconds("bsp"), 3 * 0.6, 0.05);
  EXPECT_NEAR(seconds("ssp:4"), 1.5 * 0.6, 0.05);
  EXPECT_NEAR(seconds("asp"), 1.5 * 0.6, 0.05);
}

TEST(SimulateTest, WithoutStragglersConsistencyHardlyMattersToTheRate) {
  const Plan plan = PlanOf(4, 4);
  Cluster cluster = OneOfFourIsThreeTimesSlower("bsp");
  cluster.slowness.clear();
  ComputeTimes times = HalfASecond();
  times.update = 0;
  const double bsp = SimulateSteps(plan, cluster, times, 20)->steps_per_second;
  EXPECT_NEAR(bsp, 1 / SimulateStep(plan, cluster, times)->step, 0.01 * bsp);
  for (const char* consistency : {"ssp:0", "ssp:2", "asp"}) {
    cluster.consistency = *ParseConsistency(consistency);
    EXPECT_NEAR(SimulateSteps(plan, cluster, times, 20)->steps_per_second, bsp, 0.01 * bsp);
  }
  EXPECT_FALSE(SimulateStep(plan, cluster, times).ok());
  cluster.returned = Returned::kMean;
  EXPECT_THAT(std::string(SimulateSteps(plan, cluster, times, 2).status().message()),
              HasSubstr("expected bsp unless servers update, found asp"));
}

TEST(SimulateTest, CompressionHalvesTheBytesThere) {
  Cluster cluster = Servers(Placement::kDedicated, 4);
  const double full = *SimulateExchange(PlanOf(4), cluster);
  const Plan half = PlanOf(4, 100, 0, *ParseCodec("bf16"));
  EXPECT_NEAR(*SimulateExchange(half, cluster) / full, 0.5, 0.02);
  cluster.returned = Returned::kParameters;  // come back whole
  EXPECT_NEAR(*SimulateExchange(half, cluster) / full, 1, 0.04);
}

TEST(SimulateTest, LatencyIsPaidAtEachHopAndMessagesAtEachChunk) {
  const Plan plan = PlanOf(4, 0.001, 64);  // a stripe per bucket, nearly no bytes
  Cluster ring = FreeMessages();
  ring.constants.latency = 1;
  EXPECT_NEAR(*SimulateExchange(plan, ring), 2 * (4 - 1), 0.01);
  Cluster ps = Servers(Placement::kDedicated, 1);
  ps.constants.latency = 1;
  EXPECT_NEAR(*SimulateExchange(plan, ps), 4, 0.01);  // a bucket at a time
  ps.lead = 12;
  EXPECT_NEAR(*SimulateExchange(plan, ps), 2, 0.01);
  ps.constants = {1, 0, 1, 0};
  // 4 buckets, 4 chunks, 4 workers at the server; then a stripe's pulls.
  EXPECT_NEAR(*SimulateExchange(plan, ps), 4 * 4 * 4 + 4 * 4, 8);
}

TEST(SimulateTest, CoresThatHostsShareSetTheTimeOnceTheyAreSlowerThanTheLinks) {
  const Plan plan = PlanOf(4);
  const double bytes = static_cast<double>(plan.total_bytes());
  for (Cluster cluster : {FreeMessages(), Servers(Placement::kDedicated, 4)}) {
    SCOPED_TRACE(NameOf(cluster, 4));
    const double links = *SimulateExchange(plan, cluster);
    // All bytes that are sent, at both ends: the ring's 2 (n - 1) M, servers' 2 n M.
    const double ends = 2 * bytes * (cluster.ring ? 2 * (4 - 1) : 2 * 4);
    cluster.constants.cores = {2, 0, 0.25 * links * 2 / ends};  // busy for a quarter of the time
    EXPECT_NEAR(*SimulateExchange(plan, cluster) / links, 1, 0.06);
    cluster.constants.cores.seconds_per_byte *= 12;
    EXPECT_NEAR(*SimulateExchange(plan, cluster) / links, 3, 0.15);
    cluster.constants.cores.count = 20;
    EXPECT_NEAR(*SimulateExchange(plan, cluster) / links, 1, 0.2);
    EXPECT_THAT(
        std::string(SimulateExchange(plan, cluster, SimulationMethod::kFluid).status().message()),
        HasSubstr("expected hosts with cores of their own, found 20 for all"));
  }
}

TEST(SimulateTest, WhatMakesNoSenseIsRefusedByName) {
  const Plan plan = PlanOf(4, 1);
  const ComputeTimes times = HalfASecond();
  const auto message = [&](const Cluster& cluster) {
    return std::string(SimulateStep(plan, cluster, times).status().message());
  };
  Cluster cluster = FreeMessages();
  cluster.bytes_per_second = 0;
  EXPECT_THAT(message(cluster), HasSubstr("bytes_per_second: expected more than 0, found 0"));
  EXPECT_THAT(message(Servers(Placement::kColocated, 5)),
              HasSubstr("servers: expected at most 4 beside workers, found 5"));
  EXPECT_THAT(message(Servers(Placement::kDedicated, 0)),
              HasSubstr("servers: expected at least 1, found 0"));
  cluster = FreeMessages();
  cluster.slowness = {1, 1};
  EXPECT_THAT(message(cluster), HasSubstr("slowness: expected none or 4 numbers, found 2"));
  ComputeTimes late = times;
  late.bucket_ready.back() = 0.7;
  EXPECT_THAT(std::string(SimulateStep(plan, FreeMessages(), late).status().message()),
              HasSubstr("ready times: expected between 0.5 and 0.6"));
}

}  // namespace
}  // namespace gradsync
