#include "benchmarks/peer_libraries/peer_ratio.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(PeerRatioTest, ARatioIsTheirTimeOverOursInTheSameRound) {
  EXPECT_THAT(RatiosByRound({2, 4, 5}, {6, 4, 1}),
              ElementsAre(DoubleEq(3), DoubleEq(1), DoubleEq(0.2)));
}

TEST(PeerRatioTest, TheBestPeerIsTheFastestOfEachRoundNotOfAllRounds) {
  EXPECT_THAT(FastestByRound({{5, 1, 7}, {4, 9, 6}}), ElementsAre(4, 1, 6));
  EXPECT_THAT(FastestByRound({}), IsEmpty());
}

TEST(PeerRatioTest, FewRoundsHaveTheirExtremesAsInterval) {
  const MedianSpread spread = SpreadOfMedian({3, 1, 2});
  EXPECT_EQ(spread.p50, 2);
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 3);
  EXPECT_EQ(SpreadOfMedian({}).p50, 0);
}

TEST(PeerRatioTest, FewRoundsSayHowLittleTheyShow) {
  EXPECT_EQ(DescribeInterval(1), "one round");
  EXPECT_EQ(DescribeInterval(3),
            "smallest to largest of 3 rounds, which hold the true median 75 times in 100");
  EXPECT_EQ(DescribeInterval(9), "95 % interval over 9 rounds");
}

// The upper end was one order statistic too high, so that the interval of 25 values ended at the
// 19th instead of the 18th.
TEST(PeerRatioTest, TheIntervalHasAsManyValuesBelowItAsAboveIt) {
  const struct {
    int values, low, high;
  } cases[] = {{1, 1, 1}, {5, 1, 5},   {6, 1, 6},   {8, 1, 8},
               {9, 2, 8}, {15, 4, 12}, {25, 8, 18}, {2000, 956, 1045}};
  for (const auto& expected : cases) {
    SCOPED_TRACE(expected.values);
    std::vector<double> values;
    for (int i = expected.values; i >= 1; --i) values.push_back(i);
    const MedianSpread spread = SpreadOfMedian(values);
    EXPECT_EQ(spread.p50, (1 + expected.values) / 2.0);
    EXPECT_EQ(spread.low, expected.low);
    EXPECT_EQ(spread.high, expected.high);
  }
}

TEST(PeerRatioTest, ManyRoundsLeaveOutliersOutsideTheInterval) {
  std::vector<double> values;
  for (int i = 25; i >= 1; --i) values.push_back(i);
  values[0] = 1e6;
  EXPECT_EQ(SpreadOfMedian(values).high, 18);
}

// The median of such times, 31.1, is that of neither.
TEST(PeerRatioTest, TimesThatFallApartAreTwoClusters) {
  const std::vector<TimeCluster> clusters =
      FindTwoClusters({24.2, 84.8, 91.9, 25.5, 26.0, 31.1, 24.1, 85.8, 88.5});
  ASSERT_EQ(clusters.size(), 2u);
  EXPECT_DOUBLE_EQ(clusters[0].p50, 25.5);
  EXPECT_EQ(clusters[0].count, 5);
  EXPECT_DOUBLE_EQ(clusters[1].p50, 87.15);
  EXPECT_EQ(clusters[1].count, 4);
}

TEST(PeerRatioTest, TimesThatScatterOrHaveAnOutlierAreNoTwoClusters) {
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {},
           {1},
           {1, 9},
           {1, 1, 9},
           {18.8, 17.6, 12.7, 18.2, 18.7, 13.0, 20.2, 15.1, 18.2},  // scattered
           {7.7, 6.5, 6.6, 6.5, 6.5, 6.8, 19.2, 6.6, 7.1},          // an outlier
           {100, 100, 101, 120, 120, 121},                          // near each other
           {5, 5, 5, 5}}) {
    EXPECT_THAT(FindTwoClusters(values), IsEmpty()) << testing::PrintToString(values);
  }
}

}  // namespace
}  // namespace gradsync
