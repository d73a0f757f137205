#include "core/plan/flow_control.h"

#include <random>
#include <string>
#include <vector>

#include "core/plan/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;

// Chunks of 64 bytes.
Plan PlanOf(int world_size, const std::vector<int64_t>& bucket_numels) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  for (int64_t numel : bucket_numels) {
    buckets.push_back({static_cast<int>(tensors.size())});
    tensors.push_back({"t" + std::to_string(tensors.size()), {numel}, {1}, 0});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, buckets, optimizer, world_size, /*chunk_bytes=*/64);
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

using ::testing::Each;
using ::testing::IsEmpty;

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
