#include "benchmarks/options/placement.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;

TEST(PlacementTest, EveryWorkerHasAHostOfItsOwnAndServersGoWhereTheySay) {
  EXPECT_THAT(HostsOf("", 3, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(HostsOf("dedicated", 2, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(HostsOf("colocated", 3, 2), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(HostsOf("mixed", 3, 2), ElementsAre(0, 1, 2, 0, 1, 2, 3, 4));
  EXPECT_EQ(HostCount("mixed", 3, 2), 5);
  EXPECT_EQ(HostCount("colocated", 3, 2), 3);
}

TEST(PlacementTest, MixedServersCountTheDedicatedMachines) {
  EXPECT_EQ(ServerProcesses("mixed", 4, 2), 6);
  EXPECT_EQ(ServerProcesses("colocated", 4, 2), 2);
  const std::vector<double> weights = PlacedWeights("mixed", 4, 2);
  ASSERT_EQ(weights.size(), 6u);
  // 2 of 20 and 6 of 20 parts: (n-k) and 2(n-1) of n^2+kn-2k.
  EXPECT_DOUBLE_EQ(weights[0], 0.1);
  EXPECT_DOUBLE_EQ(weights[5], 0.3);
  EXPECT_THAT(PlacedWeights("dedicated", 4, 2), ElementsAre(1, 1));
  EXPECT_THAT(PlacedWeights("", 4, 0), ElementsAre());
}

TEST(PlacementTest, OnlyParameterServersArePlacedEachPlacementWithEachCount) {
  std::vector<std::string> placed;
  for (const PlacedServers& s : PlaceServers("ps", {"dedicated", "mixed"}, {1, 3})) {
    placed.push_back(s.placement + " " + std::to_string(s.count));
  }
  EXPECT_THAT(placed, ElementsAre("dedicated 1", "dedicated 3", "mixed 1", "mixed 3"));
  const std::vector<PlacedServers> ring = PlaceServers("ring", {"dedicated", "mixed"}, {1, 3});
  ASSERT_EQ(ring.size(), 1u);
  EXPECT_EQ(ring[0].placement, "");
  EXPECT_EQ(ring[0].count, 0);
}

TEST(PlacementTest, WhatCannotBeDoesNotFit) {
  EXPECT_TRUE(PlacementFits("dedicated", 2, 5));
  EXPECT_TRUE(PlacementFits("colocated", 2, 2));
  EXPECT_FALSE(PlacementFits("colocated", 2, 3));
  EXPECT_TRUE(PlacementFits("mixed", 4, 3));
  EXPECT_FALSE(PlacementFits("mixed", 4, 4));
  EXPECT_FALSE(PlacementFits("mixed", 4, 0));
}

}  // namespace
}  // namespace gradsync
