#include "worker/pipeline/split.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitTest, NumbersAreWhereStagesBegin) {
  EXPECT_THAT(ParseSplit("4,7", 10, 3).value(),
              ElementsAre(BlockRange{0, 4}, BlockRange{4, 7}, BlockRange{7, 10}));
  EXPECT_THAT(ParseSplit("1", 2, 2).value(), ElementsAre(BlockRange{0, 1}, BlockRange{1, 2}));
  EXPECT_THAT(ParseSplit("", 3, 1).value(), ElementsAre(BlockRange{0, 3}));
  EXPECT_EQ(SplitToString(ParseSplit("4,7", 10, 3).value()), "4,7");
  EXPECT_EQ(SplitToString(ParseSplit("", 3, 1).value()), "");
}

TEST(SplitTest, RefusesWhatLeavesAStageWithoutBlocks) {
  for (const char* text : {"", "4", "4,4", "7,4", "0,4", "4,10", "4,7,8", "a,b", "4,", "-1,4"}) {
    EXPECT_THAT(std::string(ParseSplit(text, 10, 3).status().message()),
                HasSubstr("--split: expected auto, or 2 of the blocks 1 to 9"))
        << text;
  }
}

TEST(SplitTest, TheSlowestStageIsAsFastAsCanBe) {
  EXPECT_EQ(SplitToString(BalanceBlocks({1, 1, 1, 1}, 2).value()), "2");
  EXPECT_EQ(SplitToString(BalanceBlocks({5, 1, 1, 1}, 2).value()), "1");
  EXPECT_EQ(SplitToString(BalanceBlocks({1, 1, 1, 5}, 2).value()), "3");
  EXPECT_EQ(SplitToString(BalanceBlocks({1, 2, 3, 4, 5}, 3).value()), "3,4");
  EXPECT_EQ(SplitToString(BalanceBlocks({0, 0, 0}, 3).value()), "1,2");
  EXPECT_EQ(SplitToString(BalanceBlocks({2}, 1).value()), "");
  EXPECT_THAT(
      std::string(BalanceBlocks({1, 1}, 3).status().message()),
      HasSubstr("--mesh, --model_parallel: expected at most 2 stages for a model of 2 blocks"));
}

TEST(SplitTest, NoOtherCutOfThreeStagesIsBetter) {
  const std::vector<double> times = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  const auto slowest = [&times](const StageSplit& split) {
    double most = 0;
    for (BlockRange stage : split) {
      double sum = 0;
      for (int b = stage.first; b < stage.end; ++b) sum += times[b];
      most = std::max(most, sum);
    }
    return most;
  };
  const double found = slowest(BalanceBlocks(times, 3).value());
  for (int a = 1; a < 10; ++a) {
    for (int b = a + 1; b < 11; ++b) EXPECT_LE(found, slowest({{0, a}, {a, b}, {b, 11}}));
  }
}

}  // namespace
}  // namespace gradsync
