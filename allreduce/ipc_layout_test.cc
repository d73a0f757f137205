#include "allreduce/ipc_layout.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/gpu_api.h"
#include "core/plan/shard_map.h"
#include "core/plan/stripes.h"
#include "core/plan/wire_traffic.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan UnevenPlan(int ranks) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {3}, {1}, 0}, {"b", {5000}, {1}, 0}, {"c", {2049}, {1}, 0}},
                            {{0}, {1}, {2}}, optimizer, ranks, /*chunk_bytes=*/512);
}

std::vector<IpcLayout> Layouts(const Plan& plan) {
  std::vector<IpcLayout> layouts = {IpcLayout::OfRing(plan)};
  for (int owners = 0; owners <= plan.world_size(); ++owners) {
    layouts.push_back(*IpcLayout::OfServers(plan, owners));
  }
  return layouts;
}

TEST(IpcLayoutTest, EveryElementIsFoldedOnceInThePlansOrder) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Plan plan = UnevenPlan(ranks);
    for (const IpcLayout& layout : Layouts(plan)) {
      for (int b = 0; b < layout.buckets(); ++b) {
        const StripeLayout& stripes = plan.buckets()[b].layout;
        std::vector<int> first(plan.buckets()[b].numel, -1);
        std::set<int> owners;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const FoldPiece& piece : layout.Pieces(b, rank)) {
            owners.insert(rank);
            for (int64_t i = piece.offset; i < piece.offset + piece.count; ++i) {
              ASSERT_EQ(first[i], -1) << "element " << i << " has two owners";
              first[i] = piece.first;
            }
          }
        }
        EXPECT_EQ(std::vector<int>(owners.begin(), owners.end()), layout.Owners(b));
        for (int slot = 0; slot < stripes.slots(); ++slot) {
          const ElementRange range = stripes.range(slot);
          for (int64_t i = range.begin; i < range.end; ++i) {
            ASSERT_EQ(first[i], FoldRank(stripes.chunk_of(slot), 0, ranks)) << "element " << i;
          }
        }
      }
    }
  }
}

TEST(IpcLayoutTest, OneRankFoldsABucketInOnePiece) {
  const IpcLayout layout = IpcLayout::OfRing(UnevenPlan(1));
  for (int b = 0; b < layout.buckets(); ++b) EXPECT_EQ(layout.Pieces(b, 0).size(), 1u);
}

TEST(IpcLayoutTest, OwnersAreTheFirstRanksAsServersOfEqualWeight) {
  const Plan plan = UnevenPlan(4);
  const IpcLayout one = *IpcLayout::OfServers(plan, 1);
  const IpcLayout three = *IpcLayout::OfServers(plan, 3);
  const IpcLayout all = *IpcLayout::OfServers(plan, 0);
  const ShardMap servers = *ShardMap::Create(plan, {1, 1, 1});
  std::set<int> found;
  for (int b = 0; b < one.buckets(); ++b) {
    EXPECT_EQ(one.Owners(b), std::vector<int>{0});
    for (int slot = 0; slot < plan.buckets()[b].layout.slots(); ++slot) {
      EXPECT_EQ(three.owner({b, slot}), servers.server({b, slot}));
      found.insert(all.owner({b, slot}));
    }
  }
  EXPECT_EQ(found, (std::set<int>{0, 1, 2, 3}));
  EXPECT_TRUE(absl::IsInvalidArgument(IpcLayout::OfServers(plan, 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(IpcLayout::OfServers(plan, -1).status()));
}

TEST(IpcLayoutTest, BuffersAreAlignedApartAndFillPagesToShare) {
  const Plan plan = UnevenPlan(3);
  const IpcLayout layout = IpcLayout::OfRing(plan);
  size_t end = 0;
  for (size_t (IpcLayout::*offset)(int) const :
       {&IpcLayout::grad_offset, &IpcLayout::param_offset}) {
    for (int b = 0; b < layout.buckets(); ++b) {
      EXPECT_EQ((layout.*offset)(b) % 256, 0u);
      EXPECT_GE((layout.*offset)(b), end);
      end = (layout.*offset)(b) + static_cast<size_t>(plan.buckets()[b].bytes());
    }
  }
  EXPECT_GE(layout.bytes(), end);
  EXPECT_EQ(layout.bytes() % GpuApi::kSharedPage, 0u);
}

// Worker r and server r in one process, and what those two send each other not counted.
std::vector<NodeTraffic> ColocatedServers(const Plan& plan, int servers) {
  const ShardMap shards = *ShardMap::Create(plan, std::vector<double>(servers, 1));
  return HostTraffic(PsStepFlows(plan, shards), ColocatedHosts(plan.world_size(), servers));
}

TEST(IpcLayoutTest, CrossesWhatColocatedServersWouldSend) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Plan plan = UnevenPlan(ranks);
    for (int servers = 1; servers <= ranks; ++servers) {
      const IpcLayout layout = *IpcLayout::OfServers(plan, servers);
      const std::vector<NodeTraffic> expected = ColocatedServers(plan, servers);
      for (int rank = 0; rank < ranks; ++rank) {
        NodeTraffic found;
        for (int b = 0; b < layout.buckets(); ++b) {
          const WireStats stats = layout.Traffic(b, rank);
          found.tx_bytes += stats.tx_bytes;
          found.rx_bytes += stats.rx_bytes;
          found.tx_messages += stats.tx_messages;
          found.rx_messages += stats.rx_messages;
        }
        EXPECT_TRUE(found == expected[rank]) << ranks << " ranks, " << servers << " servers, rank "
                                             << rank << ": " << found.tx_bytes;
      }
    }
  }
}

TEST(IpcLayoutTest, AllRanksTogetherCrossWhatARingSends) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Plan plan = UnevenPlan(ranks);
    const IpcLayout layout = IpcLayout::OfRing(plan);
    int64_t found = 0;
    int64_t expected = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int b = 0; b < layout.buckets(); ++b) found += layout.Traffic(b, rank).tx_bytes;
    }
    for (const Flow& flow : RingStepFlows(plan)) expected += flow.bytes;
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace gradsync
