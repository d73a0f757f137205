#include "core/plan/sharding.h"

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/kinds.h"
#include "core/plan/step_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(ZeroTest, RingsAndServersMayHaveAnyAndOthersAreRefused) {
  JobSpec spec;
  spec.topology = Topology::kRing;
  spec.link = Link::kGrpc;
  for (int zero = 0; zero <= kMostZero; ++zero) EXPECT_TRUE(CheckZero(zero, spec).ok()) << zero;
  for (int zero : {-1, kMostZero + 1}) {
    EXPECT_THAT(CheckZero(zero, spec).message(), HasSubstr("--zero: expected 0 to 3, found"));
  }
  const auto refused = [&spec](int zero, const std::string& words) {
    EXPECT_TRUE(CheckZero(zero - 1, spec).ok()) << words;
    EXPECT_THAT(CheckZero(zero, spec).message(), HasSubstr(words));
  };
  spec.codec = *ParseCodec("bf16");
  refused(3, "--zero: expected 0 to 2 with --compression");
  spec.codec = Codec();
  spec.link = Link::kGloo;
  refused(1, "--zero: expected 0 with --link=gloo");
  for (const Link link : {Link::kNccl, Link::kCudaIpc}) {
    spec.link = link;
    refused(2, "--zero: expected 0 or 1 with --link=" + LinkName(link));
  }
  spec.link = Link::kAuto;
  spec.consistency = *ParseConsistency("ssp:2");
  refused(2, "--zero: expected 0 or 1 with --consistency=ssp:2");
  spec.consistency = Consistency();
  spec.topology = Topology::kLocal;
  refused(3, "--zero: expected 0 to 2 with --topology=local");
}

}  // namespace

// What a job costs whose owners keep things for all. tests/sharded_backends_test.cc holds the
// backends against it.

namespace {

// Four buckets of different sizes, with cut tails, for units of one bucket each.
Plan PlanOf(int n, BucketSlots slots) {
  OptimizerSpec optimizer;
  optimizer.groups.emplace_back().momentum = 0.9;
  return *Plan::FromBuckets({{"a", {5000}, {1}, 0},
                             {"b", {17}, {1}, 0},
                             {"c", {2049}, {1}, 0},
                             {"d", {900}, {1}, 0}},
                            {{0}, {1}, {2}, {3}}, optimizer, n, /*chunk_bytes=*/512)
              ->WithSlots(slots);
}

std::vector<std::vector<int>> Units() { return {{3}, {2}, {1}, {0}}; }

BucketSlots Two() {
  BucketSlots slots;
  slots.gradients = slots.parameters = 2;
  return slots;
}

TEST(ShardedJobTest, AStepIsItsLaunchesAndItsGathers) {
  for (int n : {1, 2, 3, 5}) {
    const Plan plan = PlanOf(n, Two());
    const std::vector<int> gathers = GathersOfStep(plan, Units());
    EXPECT_EQ(gathers, (std::vector<int>{3, 2, 1, 0, 2, 3}));
    int64_t gathered = 0;
    for (int bucket : gathers) gathered += plan.buckets()[bucket].bytes();
    const std::vector<NodeTraffic> ring = ProcessTraffic(RingShardedStepFlows(plan, gathers), n);
    int64_t received = 0;
    for (const NodeTraffic& rank : ring) received += rank.rx_bytes;
    // Each of n - 1 other ranks sends a sum on, or needs the parameters.
    EXPECT_EQ(received, (n - 1) * (plan.total_bytes() + gathered)) << n;

    const ShardMap shards = *ShardMap::Create(plan, {1, 2});
    const std::vector<NodeTraffic> ps =
        ProcessTraffic(PsShardedStepFlows(plan, shards, gathers), n + 2);
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(ps[rank].tx_bytes, plan.total_bytes());
      EXPECT_EQ(ps[rank].rx_bytes, gathered);
    }
    EXPECT_EQ(ps[n].rx_bytes, n * shards.bytes(0));
    EXPECT_EQ(ps[n].tx_bytes + ps[n + 1].tx_bytes, n * gathered);
  }
}

TEST(ShardedJobTest, MemoryIsThatOfSlotsAndOfWhatIsOwned) {
  for (int n : {1, 2, 3, 5}) {
    const Plan whole = PlanOf(n, BucketSlots());
    const int64_t all = whole.total_bytes();
    EXPECT_EQ(RingMemory(whole, UpdateSite::kWorker, 0).total(), 3 * all);
    const Plan shared = PlanOf(n, Two());
    // The first and the third bucket take turns, and the second and the fourth.
    const int64_t slots = shared.buckets()[0].bytes() + shared.buckets()[3].bytes();
    int64_t shards = 0;
    for (int rank = 0; rank < n; ++rank) {
      const MemoryUse use = RingMemory(shared, UpdateSite::kOwner, rank);
      EXPECT_EQ(use.parameters, slots);
      EXPECT_EQ(use.gradients, slots);
      EXPECT_EQ(use.state, use.shard);
      EXPECT_LE(use.total(), RingMemory(shared, UpdateSite::kOwner, 0).total());
      shards += use.shard;
    }
    EXPECT_EQ(shards, all);
    EXPECT_EQ(PsWorkerMemory(shared, UpdateSite::kOwner).total(), 2 * slots);
    EXPECT_EQ(PsServerMemory(shared, UpdateSite::kOwner, all / 2).total(), 3 * (all / 2));
    EXPECT_EQ(PsServerMemory(whole, UpdateSite::kWorker, all / 2).total(), 2 * (all / 2));
  }
}

}  // namespace
}  // namespace gradsync
