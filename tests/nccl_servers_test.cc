// Parameter servers over NCCL: what they send, and that one rank or many, and one server or many,
// make no difference to the bits. Over the fakes.

#include <memory>
#include <vector>

#include "core/plan/shard_map.h"
#include "gtest/gtest.h"
#include "tests/nccl_group.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

std::vector<FlatValues> Gradients(const Plan& plan) {
  std::vector<FlatValues> all;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    all.push_back(RandomValues(plan, static_cast<uint64_t>(rank) + 1));
  }
  return all;
}

TEST(NcclServersTest, MeansHaveThePlansBitsForManyRanks) {
  for (const int ranks : {5, 8}) {
    for (const int owners : {1, 3, ranks}) {
      NcclGroup group(ranks, UpdateSite::kWorker, absl::Seconds(60), owners);
      const std::vector<FlatValues> gradients = Gradients(group.plan);
      StepOptions step = Step(1);
      step.inverse_loss_scale = 1.0 / 3;
      const FlatValues expected = ReferenceMean(group.plan, gradients, step.inverse_loss_scale);
      group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>& buckets) {
        Write(gradients[rank], buckets, &GradBucket::grad);
        ASSERT_EQ(RunStep(sync, group.plan, step), absl::OkStatus());
        ASSERT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
        EXPECT_EQ(Read(buckets, &GradBucket::grad), expected);
      });
    }
  }
}

TEST(NcclServersTest, WhatIsSentIsCounted) {
  constexpr int kRanks = 4;
  for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    for (const int owners : {1, 3, 4}) {
      NcclGroup group(kRanks, site, absl::Seconds(60), owners);
      const ShardMap shards =
          *ShardMap::Create(group.plan, std::vector<double>(static_cast<size_t>(owners), 1.0));
      const int64_t whole = group.plan.total_bytes();
      group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
        ASSERT_EQ(sync.BroadcastParameters(Soon()), absl::OkStatus());
        EXPECT_EQ(sync.wire_stats().tx_bytes, rank == 0 ? (kRanks - 1) * whole : 0);
        EXPECT_EQ(sync.wire_stats().rx_bytes, rank == 0 ? 0 : whole);
        const WireStats before = sync.wire_stats();
        for (int64_t s = 1; s <= 3; ++s) {
          ASSERT_EQ(RunStep(sync, group.plan, Step(s)), absl::OkStatus());
        }
        const int64_t own = rank < owners ? shards.bytes(rank) : 0;
        // Contributions to the chunks of others, and results of its own; the same the other way.
        const int64_t bytes = 3 * ((whole - own) + (kRanks - 1) * own);
        EXPECT_EQ((sync.wire_stats() - before).tx_bytes, bytes);
        EXPECT_EQ((sync.wire_stats() - before).rx_bytes, bytes);
        EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
      });
    }
  }
}

TEST(NcclServersTest, ARankThatOwnsNothingHasNoMemoryForIt) {
  NcclGroup group(3, UpdateSite::kWorker, absl::Seconds(60), /*owners=*/1);
  group.Run([&](int rank, GradientSync& sync, std::vector<GradBucket>&) {
    // The buckets and, at the owner, two contributions and the list of its chunks.
    EXPECT_EQ(group.gpu[rank]->calls("AllocateDevice"), rank == 0 ? 4 : 1);
    EXPECT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
  });
}

}  // namespace
}  // namespace gradsync
