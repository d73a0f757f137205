#include "worker/train/step_log.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;

std::vector<int64_t> KeptOf(int64_t steps, size_t most, int64_t* stride) {
  StepLog log(most);
  for (int64_t step = 1; step <= steps; ++step) {
    LoggedStep logged;
    logged.step = step;
    log.Add(logged);
  }
  EXPECT_EQ(log.added(), steps);
  *stride = log.stride();
  std::vector<int64_t> kept;
  for (const LoggedStep& logged : log.kept()) kept.push_back(logged.step);
  return kept;
}

TEST(StepLogTest, FewStepsAreAllKept) {
  int64_t stride = 0;
  EXPECT_THAT(KeptOf(3, 4, &stride), ElementsAre(1, 2, 3));
  EXPECT_EQ(stride, 1);
}

TEST(StepLogTest, OfManyEverySoManiethIsKept) {
  int64_t stride = 0;
  EXPECT_THAT(KeptOf(4, 4, &stride), ElementsAre(2, 4));
  EXPECT_EQ(stride, 2);
  EXPECT_THAT(KeptOf(7, 4, &stride), ElementsAre(2, 4, 6));
  EXPECT_THAT(KeptOf(8, 4, &stride), ElementsAre(4, 8));
  EXPECT_EQ(stride, 4);
  EXPECT_THAT(KeptOf(15, 4, &stride), ElementsAre(4, 8, 12));
}

TEST(StepLogTest, HowManyAreKeptDoesNotGrowWithTheJob) {
  for (int64_t steps : {1'000, 100'000, 1'000'000}) {
    int64_t stride = 0;
    const std::vector<int64_t> kept = KeptOf(steps, 64, &stride);
    EXPECT_LT(kept.size(), 64u);
    EXPECT_GE(kept.size(), 32u);
    for (size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i], stride * static_cast<int64_t>(i + 1));
    }
    EXPECT_LT(steps - kept.back(), stride);
  }
}

}  // namespace
}  // namespace gradsync
