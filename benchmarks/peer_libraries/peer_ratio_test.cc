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

TEST(PeerRatioTest, ManyRoundsLeaveOutliersOutsideTheInterval) {
  // 25 values: 12.5 +- 4.9, so the 8th and the 19th.
  std::vector<double> values;
  for (int i = 25; i >= 1; --i) values.push_back(i);
  values[0] = 1e6;
  const MedianSpread spread = SpreadOfMedian(values);
  EXPECT_EQ(spread.p50, 13);
  EXPECT_EQ(spread.low, 8);
  EXPECT_EQ(spread.high, 19);
}

}  // namespace
}  // namespace gradsync
