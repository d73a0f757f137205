#include "core/plan/shard_map.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/plan/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Plan MakePlan(int world_size, const std::vector<int64_t>& bucket_numels, int64_t chunk_bytes) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  for (int64_t numel : bucket_numels) {
    buckets.push_back({static_cast<int>(tensors.size())});
    tensors.push_back({"t" + std::to_string(tensors.size()), {numel}, {1}, 0});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, buckets, optimizer, world_size, chunk_bytes);
}

int64_t LargestChunkBytes(const Plan& plan) {
  int64_t largest = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    largest = std::max(largest, 4 * bucket.layout.chunk_elements());
  }
  return largest;
}

TEST(ShardMapTest, EqualServersAreBalancedToWithinAChunk) {
  for (int n : {1, 2, 3, 4, 5, 8}) {
    const Plan plan = MakePlan(n, {100, 250000, 1300000, 7, 999999}, 65536);
    for (int k = 1; k <= 9; ++k) {
      const ShardMap map = *ShardMap::Create(plan, std::vector<double>(k, 1.0));
      int64_t least = std::numeric_limits<int64_t>::max();
      int64_t most = 0;
      int64_t sum = 0;
      for (int server = 0; server < k; ++server) {
        least = std::min(least, map.bytes(server));
        most = std::max(most, map.bytes(server));
        sum += map.bytes(server);
      }
      EXPECT_LE(most - least, LargestChunkBytes(plan)) << "n=" << n << " k=" << k;
      EXPECT_EQ(sum, plan.total_bytes());
    }
  }
}

TEST(ShardMapTest, WeightsDivideTheBytes) {
  const Plan plan = MakePlan(4, {4000000}, 65536);
  const ShardMap map = *ShardMap::Create(plan, {1, 2, 5});
  for (int server = 0; server < 3; ++server) {
    const double share = std::vector<double>{1, 2, 5}[server] / 8;
    EXPECT_NEAR(static_cast<double>(map.bytes(server)), share * plan.total_bytes(),
                LargestChunkBytes(plan));
  }
}

TEST(ShardMapTest, NeighbouringChunksGoToDifferentServersAlsoAcrossStripesAndBuckets) {
  const Plan plan = MakePlan(4, {400000, 400000}, 65536);
  const ShardMap map = *ShardMap::Create(plan, {1, 1, 1});
  int previous = -1;
  for (int b = 0; b < 2; ++b) {
    for (int slot = 0; slot < plan.buckets()[b].layout.slots(); ++slot) {
      EXPECT_NE(map.server({b, slot}), previous);
      previous = map.server({b, slot});
    }
  }
}

TEST(ShardMapTest, EveryChunkThatIsNotEmptyIsPushedOnceInTheSendersOrder) {
  const Plan plan = MakePlan(3, {20, 100000, 7}, 4096);
  const ShardMap map = *ShardMap::Create(plan, {1, 1});
  for (int rank = 0; rank < 3; ++rank) {
    size_t pushed = 0;
    for (int server = 0; server < 2; ++server) {
      const std::vector<ChunkId> order = PushOrder(plan, map, server, rank);
      pushed += order.size();
      for (size_t i = 0; i < order.size(); ++i) {
        const StripeLayout& layout = plan.buckets()[order[i].bucket].layout;
        EXPECT_EQ(map.server(order[i]), server);
        EXPECT_FALSE(layout.range(order[i].slot).empty());
        if (i == 0 || order[i - 1].bucket != order[i].bucket) continue;
        const auto key = [&](ChunkId s) {
          return layout.stripe_of(s.slot) * 3 + FoldPosition(layout.chunk_of(s.slot), rank, 3);
        };
        EXPECT_LT(key(order[i - 1]), key(order[i]));
      }
    }
    size_t expected = 0;
    for (const BucketPlan& bucket : plan.buckets()) {
      for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
        if (!bucket.layout.range(slot).empty()) ++expected;
      }
    }
    EXPECT_EQ(pushed, expected);
  }
}

// As it was computed before: a look at each server for each chunk.
std::vector<int64_t> BytesByLookingAtAll(const Plan& plan, const std::vector<double>& weights,
                                         const ShardMap& map) {
  std::vector<int64_t> bytes(weights.size(), 0);
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const int64_t more = 4 * layout.range(slot).size();
      if (more == 0) continue;
      size_t best = 0;
      for (size_t i = 1; i < weights.size(); ++i) {
        const double load = static_cast<double>(bytes[i] + more) / weights[i];
        if (load < static_cast<double>(bytes[best] + more) / weights[best]) best = i;
      }
      EXPECT_EQ(map.server({b, slot}), static_cast<int>(best)) << b << " " << slot;
      bytes[best] += more;
    }
  }
  return bytes;
}

// A server looked at each weight for each chunk: 65,536 weights in a hello held its lock for minutes.
TEST(ShardMapTest, EachChunkIsOfTheServerThatIsLeastLoadedWithIt) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    const Plan plan =
        MakePlan(1 + trial % 5, {100000, 20, 77777, 300001, 7, 99999}, trial % 2 == 0 ? 4096 : 0);
    std::vector<double> weights(1 + random() % 30);
    for (double& weight : weights) weight = trial % 3 == 0 ? 0.3 : 1 + random() % 4 / 3.0;
    const ShardMap map = *ShardMap::Create(plan, weights);
    const std::vector<int64_t> bytes = BytesByLookingAtAll(plan, weights, map);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(map.bytes(i), bytes[i]);
  }
}

TEST(ShardMapTest, OneListHasTheOrdersOfAllRanks) {
  for (const int n : {1, 2, 3, 5, 8}) {
    const Plan plan = MakePlan(n, {20, 100000, 7, 16 * n, 5000}, 1024);
    for (const std::vector<double>& weights :
         {std::vector<double>{1}, {1, 1}, {1, 2, 3}, std::vector<double>(9, 1)}) {
      const ShardMap map = *ShardMap::Create(plan, weights);
      for (int server = 0; server < map.servers(); ++server) {
        const ServerPushOrder all(PushOrder(plan, map, server, 0), n);
        for (int rank = 0; rank < n; ++rank) {
          const std::vector<ChunkId> order = PushOrder(plan, map, server, rank);
          ASSERT_EQ(all.size(), order.size());
          for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(all.At(rank, i), order[i]) << rank;
        }
      }
    }
  }
}

TEST(ShardMapTest, WeightsThatAreNotPositiveNumbersAreRefused) {
  const Plan plan = MakePlan(2, {100}, 4096);
  EXPECT_FALSE(ShardMap::Create(plan, {}).ok());
  EXPECT_FALSE(ShardMap::Create(plan, {1, 0}).ok());
  EXPECT_FALSE(ShardMap::Create(plan, {1, -1}).ok());
  EXPECT_FALSE(ShardMap::Create(plan, {1, std::numeric_limits<double>::infinity()}).ok());
}

// Chunks of 64 bytes.
Plan PlanOf(int world_size, const std::vector<int64_t>& bucket_numels) {
  return MakePlan(world_size, bucket_numels, /*chunk_bytes=*/64);
}

std::vector<int> LeadsOf(const Plan& plan, const std::vector<double>& weights,
                         const std::vector<int>& streams, int lead) {
  return PushLeads(plan, *ShardMap::Create(plan, weights), streams, lead);
}

TEST(PushLeadTest, AServerGrantsItsChunksOfAStripeAndSomeOnTheirWay) {
  const Plan plan = PlanOf(8, {8 * 16 * 8});
  EXPECT_THAT(LeadsOf(plan, {1}, {2}, 3), ElementsAre(8 + 6));
  EXPECT_THAT(LeadsOf(plan, {1, 1}, {2, 2}, 3), ElementsAre(4 + 6, 4 + 6));
  EXPECT_THAT(LeadsOf(plan, {1, 1, 1, 1}, {1, 1, 1, 1}, 1), ElementsAre(3, 3, 3, 3));
}

TEST(PushLeadTest, MoreAreOnTheirWayToServersWithMoreStreams) {
  const Plan plan = PlanOf(8, {8 * 16 * 8});
  EXPECT_THAT(LeadsOf(plan, {3, 1}, {3, 1}, 4), ElementsAre(6 + 12, 2 + 4));
  EXPECT_THAT(LeadsOf(plan, {1, 1e-9}, {4, 1}, 2), ElementsAre(8 + 8, 0 + 2));
}

// Workers push in any order of turns, as long as each keeps to its lead.
class ExchangeOfTurns {
 public:
  ExchangeOfTurns(const Plan& plan, const ShardMap& shards, int server, int lead)
      : workers_(plan.world_size()), lead_(lead), pushed_(workers_, 0) {
    for (int rank = 0; rank < workers_; ++rank) {
      orders_.push_back(PushOrder(plan, shards, server, rank));
      parts_.resize(plan.buckets().size());
      for (size_t b = 0; b < parts_.size(); ++b) {
        parts_[b].assign(plan.buckets()[b].layout.slots(), 0);
      }
    }
  }

  // Chunks without a result when nobody may push any more.
  size_t Run(std::mt19937& random) {
    while (true) {
      std::vector<int> may;
      for (int rank = 0; rank < workers_; ++rank) {
        const size_t pushed = pushed_[rank];
        if (pushed < orders_[rank].size() && pushed < results_ + lead_) may.push_back(rank);
      }
      if (may.empty()) return orders_[0].size() - results_;
      const int rank = may[random() % may.size()];
      const ChunkId id = orders_[rank][pushed_[rank]++];
      if (++parts_[id.bucket][id.slot] == workers_) ++results_;
    }
  }

 private:
  const int workers_;
  const size_t lead_;
  std::vector<size_t> pushed_;  // by rank
  size_t results_ = 0;
  std::vector<std::vector<ChunkId>> orders_;  // by rank
  std::vector<std::vector<int>> parts_;       // by bucket, by slot
};

TEST(PushLeadTest, WorkersThatKeepToItNeverAllWaitForEachOther) {
  std::mt19937 random(1);
  for (int n : {1, 2, 3, 5, 8}) {
    const Plan plan = PlanOf(n, {1234, 5, 999});
    std::vector<std::vector<double>> all = {{1}, {1, 1}, {1, 1, 1}, {5, 1, 2}};
    all.push_back(MixedWeights(n, n / 2));
    for (const std::vector<double>& weights : all) {
      const ShardMap shards = *ShardMap::Create(plan, weights);
      const std::vector<int> leads =
          PushLeads(plan, shards, std::vector<int>(weights.size(), 1), 1);
      for (int server = 0; server < shards.servers(); ++server) {
        const int least = leads[server] - 1;  // the one on its way is for speed
        for (int turn = 0; turn < 10; ++turn) {
          EXPECT_EQ(ExchangeOfTurns(plan, shards, server, least).Run(random), 0)
              << n << " workers, server " << server << " of " << weights.size();
        }
      }
    }
  }
}

TEST(ServerStreamsTest, ServersThatOwnAsMuchAsEachOtherHaveAsManyStreams) {
  EXPECT_THAT(StreamsByServer({0.3, 0.3}, 2), ElementsAre(2, 2));
  EXPECT_THAT(StreamsByServer({1}, 4), ElementsAre(4));
  EXPECT_THAT(StreamsByServer({}, 4), IsEmpty());
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 0), 2), Each(2));
}

TEST(ServerStreamsTest, OtherwiseStreamsAreInProportionToShares) {
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 2), 2), ElementsAre(1, 1, 1, 1, 3, 3));
  EXPECT_THAT(StreamsByServer(MixedWeights(4, 1), 2), ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(StreamsByServer({1, 1000}, 2), ElementsAre(1, 4));
}

}  // namespace
}  // namespace gradsync
