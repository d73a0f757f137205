#include "core/plan/wire_traffic.h"

#include <map>
#include <utility>

#include "core/plan/ring_schedule.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Pair = std::pair<int, int>;
using Sums = std::map<Pair, std::pair<int64_t, int64_t>>;  // bytes and messages by from and to

void Send(int from, int to, const StripeLayout& layout, int slot, Sums* sums) {
  if (layout.range(slot).empty() || from == to) return;
  std::pair<int64_t, int64_t>& sum = (*sums)[{from, to}];
  sum.first += layout.range(slot).size() * 4;
  ++sum.second;
}

Sums SumsOf(const std::vector<Flow>& flows) {
  Sums sums;
  for (const Flow& flow : flows) {
    const bool is_new = sums.insert({{flow.from, flow.to}, {flow.bytes, flow.messages}}).second;
    EXPECT_TRUE(is_new) << "two flows from " << flow.from << " to " << flow.to;
  }
  return sums;
}

// Buckets below n elements, with cut tails, with empty chunks, and of many stripes.
Plan UnevenPlan(int n) {
  std::vector<TensorSpec> tensors = {{"a", {3}, {1}, 0},
                                     {"b", {5000}, {1}, 0},
                                     {"c", {2049}, {1}, 0},
                                     {"d", {20}, {1}, 0},
                                     {"e", {64 * n}, {1}, 0}};
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, {{0}, {1}, {2}, {3}, {4}}, optimizer, n, 256);
}

// Follows each token from rank to rank, as ring_schedule.h tells its way in words.
Sums WalkedRing(const Plan& plan) {
  Sums sums;
  const int n = plan.world_size();
  for (const BucketPlan& bucket : plan.buckets()) {
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int owner = bucket.layout.chunk_of(slot);
      int rank = (owner + 1) % n;
      for (int hop = 0; hop < 2 * (n - 1); ++hop) {
        Send(rank, (rank + 1) % n, bucket.layout, slot, &sums);
        rank = (rank + 1) % n;
      }
    }
  }
  return sums;
}

Sums WalkedWindows(const Plan& plan) {
  Sums sums;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      for (int rank = 0; rank < plan.world_size(); ++rank) {
        Send(bucket.layout.chunk_of(slot), rank, bucket.layout, slot, &sums);
      }
    }
  }
  return sums;
}

TEST(WireTrafficTest, ThroughWindowsEachOwnerStoresItsChunksIntoAllOthers) {
  for (int n = 1; n <= 8; ++n) {
    const Plan plan = UnevenPlan(n);
    EXPECT_EQ(SumsOf(WindowStepFlows(plan)), WalkedWindows(plan)) << n;
    for (const Flow& flow : WindowBroadcastFlows(plan)) EXPECT_EQ(flow.bytes, plan.total_bytes());
  }
}

TEST(WireTrafficTest, ThroughWindowsServersStoreTheirChunksIntoAllWorkersAndNobodyPushes) {
  for (int n = 1; n <= 8; ++n) {
    const Plan plan = UnevenPlan(n);
    const ShardMap shards = *ShardMap::Create(plan, {1, 2});
    const std::vector<NodeTraffic> nodes = ProcessTraffic(WindowStepFlows(plan, shards), n + 2);
    int64_t bytes = 0;
    for (int server = 0; server < 2; ++server) {
      EXPECT_EQ(nodes[n + server].tx_bytes, n * shards.bytes(server));
      EXPECT_EQ(nodes[n + server].rx_bytes, 0);
      bytes += shards.bytes(server);
    }
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(nodes[rank].tx_bytes, 0);
      EXPECT_EQ(nodes[rank].rx_bytes, bytes);
    }
  }
}

Sums WalkedServers(const Plan& plan, const ShardMap& shards) {
  Sums sums;
  const int n = plan.world_size();
  for (int rank = 0; rank < n; ++rank) {
    for (int server = 0; server < shards.servers(); ++server) {
      for (ChunkId id : PushOrder(plan, shards, server, rank)) {
        const StripeLayout& layout = plan.buckets()[id.bucket].layout;
        Send(rank, n + server, layout, id.slot, &sums);
        Send(n + server, rank, layout, id.slot, &sums);
      }
    }
  }
  return sums;
}

TEST(WireTrafficTest, ARingsFlowsAreItsTokensWays) {
  for (int n = 1; n <= 9; ++n) {
    const Plan plan = UnevenPlan(n);
    EXPECT_EQ(SumsOf(RingStepFlows(plan)), WalkedRing(plan)) << n;
  }
}

TEST(WireTrafficTest, ServersFlowsAreWhatWorkersPushAndPull) {
  for (int n = 1; n <= 8; ++n) {
    const Plan plan = UnevenPlan(n);
    for (const std::vector<double>& weights :
         {std::vector<double>{1}, {1, 1}, {1, 1, 1}, {3, 1}, {1, 2, 5, 0.1}}) {
      const ShardMap shards = *ShardMap::Create(plan, weights);
      EXPECT_EQ(SumsOf(PsStepFlows(plan, shards)), WalkedServers(plan, shards))
          << n << " workers, " << weights.size() << " servers";
    }
  }
}

TEST(WireTrafficTest, AServerWithoutChunksHasNoFlows) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  const Plan plan = *Plan::FromBuckets({{"a", {3}, {1}, 0}}, {{0}}, optimizer, 2, 256);
  const ShardMap shards = *ShardMap::Create(plan, {1, 1, 1});
  EXPECT_EQ(SumsOf(PsStepFlows(plan, shards)),
            (Sums{{{0, 2}, {64, 1}}, {{1, 2}, {64, 1}}, {{2, 0}, {64, 1}}, {{2, 1}, {64, 1}}}));
}

TEST(WireTrafficTest, ABroadcastBringsEveryOtherWorkerAllParametersOnce) {
  for (int n = 1; n <= 8; ++n) {
    const Plan plan = UnevenPlan(n);
    const int64_t bytes = plan.total_bytes();
    const std::vector<NodeTraffic> ring = ProcessTraffic(RingBroadcastFlows(plan), n);
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(ring[rank].rx_bytes, rank == 0 ? 0 : bytes);
      EXPECT_EQ(ring[rank].tx_bytes, rank == n - 1 ? 0 : bytes);
    }
    for (int k = 1; k <= 3; ++k) {
      const ShardMap shards = *ShardMap::Create(plan, std::vector<double>(k, 1));
      const std::vector<NodeTraffic> ps = ProcessTraffic(PsBroadcastFlows(plan, shards), n + k);
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_EQ(ps[rank].rx_bytes, rank == 0 ? 0 : bytes);
        EXPECT_EQ(ps[rank].tx_bytes, rank == 0 ? bytes : 0);
      }
      for (int server = 0; server < k; ++server) {
        EXPECT_EQ(ps[n + server].rx_bytes, shards.bytes(server));
        EXPECT_EQ(ps[n + server].tx_bytes, (n - 1) * shards.bytes(server));
      }
    }
  }
}

TEST(WireTrafficTest, ProcessesOfARingCountWhatTheScheduleSays) {
  const Plan plan = UnevenPlan(5);
  const std::vector<NodeTraffic> ring = ProcessTraffic(RingStepFlows(plan), 5);
  for (int rank = 0; rank < 5; ++rank) {
    const RingTraffic expected = StepTraffic(plan, rank);
    EXPECT_EQ(ring[rank], (NodeTraffic{expected.tx_bytes, expected.rx_bytes, expected.tx_messages,
                                       expected.rx_messages}));
  }
}

TEST(WireTrafficTest, WhatStaysWithinAHostIsFree) {
  const std::vector<Flow> flows = {{0, 1, 100, 2}, {1, 0, 10, 1}, {1, 2, 7, 1}, {2, 0, 5, 1}};
  EXPECT_EQ(HostTraffic(flows, {0, 0, 0}), std::vector<NodeTraffic>(1));
  EXPECT_EQ(HostTraffic(flows, {0, 0, 1}), (std::vector<NodeTraffic>{{7, 5, 1, 1}, {5, 7, 1, 1}}));
  EXPECT_EQ(HostTraffic(flows, {0, 1, 2}),
            (std::vector<NodeTraffic>{{100, 15, 2, 2}, {17, 100, 2, 2}, {5, 7, 1, 1}}));
  EXPECT_EQ(HostTraffic({}, {}), std::vector<NodeTraffic>());
}

TEST(WireTrafficTest, PlacementsPutServersWhereTheirNamesSay) {
  EXPECT_EQ(DedicatedHosts(2, 3), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(ColocatedHosts(3, 2), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(MixedHosts(2, 3), (std::vector<int>{0, 1, 0, 1, 2}));
}

TEST(WireTrafficTest, TheBusiestNodeIsTheOneWithTheMostInOneDirection) {
  const std::vector<NodeTraffic> nodes = {{10, 3, 1, 9}, {2, 11, 4, 1}, {8, 8, 5, 5}};
  EXPECT_EQ(BusiestBytes(nodes), 11);
  EXPECT_EQ(BusiestMessages(nodes), 9);
  EXPECT_EQ(BusiestBytes({}), 0);
}

}  // namespace
}  // namespace gradsync
