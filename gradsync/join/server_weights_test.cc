#include "gradsync/join/server_weights.h"

#include "core/plan/cost_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

TEST(ServerWeightsTest, AMixedPlacementGetsTheSharesThatKeepAllHostsEquallyBusy) {
  EXPECT_THAT(WeightsByHost({"a", "b", "c"}, {"a", "b", "c", "d"}),
              ElementsAreArray(MixedWeights(3, 1)));
  const ServerShares shares = MixedShares(3, 2);
  EXPECT_THAT(WeightsByHost({"a", "b", "c"}, {"x", "b", "c", "a", "y"}),
              ElementsAre(shares.dedicated, shares.colocated, shares.colocated, shares.colocated,
                          shares.dedicated));
}

TEST(ServerWeightsTest, EveryOtherPlacementGetsEqualShares) {
  const std::vector<double> one_each = {1, 1};
  EXPECT_EQ(WeightsByHost({"a", "b"}, {"c", "d"}), one_each) << "dedicated";
  EXPECT_EQ(WeightsByHost({"a", "b"}, {"a", "b"}), one_each) << "colocated";
  EXPECT_EQ(WeightsByHost({"a", "b", "c"}, {"a", "b"}), one_each) << "colocated with some";
  EXPECT_EQ(WeightsByHost({"a", "a"}, {"a", "a"}), one_each) << "one host";
  EXPECT_EQ(WeightsByHost({"a", "b", "c"}, {"a", "d"}), one_each) << "not beside every worker";
  EXPECT_EQ(WeightsByHost({"a"}, {"a", "b"}), one_each) << "as many dedicated ones as workers";
  EXPECT_EQ(WeightsByHost({"a", "a", "b"}, {"a", "b", "c"}), std::vector<double>({1, 1, 1}));
  EXPECT_EQ(WeightsByHost({"a", "b", "c"}, {"a", "b", "c", "c"}).size(), 4u);
  EXPECT_THAT(WeightsByHost({"a", "b", "c"}, {"a", "b", "c", "d", "d"}),
              ElementsAre(1, 1, 1, 1, 1));
}

TEST(ServerWeightsTest, TheFlagIsAWordOrANumberForEachServer) {
  EXPECT_TRUE(ParseServerWeights("auto")->by_host);
  EXPECT_FALSE(ParseServerWeights("equal")->by_host);
  EXPECT_THAT(ParseServerWeights("equal")->weights, ElementsAre());
  EXPECT_THAT(ParseServerWeights("1,2.5")->weights, ElementsAre(1, 2.5));
  for (const char* text : {"", "heavy", "1,,2", "0,1", "-1", "nan", "inf"}) {
    const auto parsed = ParseServerWeights(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--server_weights: "));
  }
}

}  // namespace
}  // namespace gradsync
