#include "worker/data/loader_threads.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

void ExpectThreads(LoaderThreads found, int first, int most) {
  EXPECT_EQ(found.first, first);
  EXPECT_EQ(found.most, most);
}

// One thread fed every GPU.
TEST(LoaderThreadsTest, AGpuIsFedByItsShareOfTheCores) {
  ExpectThreads(ChooseLoaderThreads(0, /*on_gpu=*/true, 16, 1), 8, 15);
  ExpectThreads(ChooseLoaderThreads(0, true, 16, 2), 7, 7);
  ExpectThreads(ChooseLoaderThreads(0, true, 16, 4), 3, 3);
  ExpectThreads(ChooseLoaderThreads(0, true, 2, 8), 1, 1);
  ExpectThreads(ChooseLoaderThreads(0, true, 1, 0), 1, 1);
}

TEST(LoaderThreadsTest, ACpuBeginsWithOneAndHasItsShareOfTheCoresAtMost) {
  ExpectThreads(ChooseLoaderThreads(0, /*on_gpu=*/false, 64, 1), 1, 64);
  ExpectThreads(ChooseLoaderThreads(0, false, 64, 4), 1, 16);
  ExpectThreads(ChooseLoaderThreads(0, false, 2, 2), 1, 1);
  ExpectThreads(ChooseLoaderThreads(0, false, 0, 0), 1, 1);
}

TEST(LoaderThreadsTest, WhoAsksGetsThatMany) {
  ExpectThreads(ChooseLoaderThreads(3, true, 16, 1), 3, 3);
  ExpectThreads(ChooseLoaderThreads(12, false, 2, 1), 12, 12);
}

TEST(PrefetchDepthTest, IsByBytes) {
  EXPECT_EQ(PrefetchDepth(1 << 20, 4 << 20), 4);
  EXPECT_EQ(PrefetchDepth(1 << 20, (5 << 20) - 1), 4);
  EXPECT_EQ(PrefetchDepth(154 << 20, 64 << 20), 2);
  EXPECT_EQ(PrefetchDepth(100, 64 << 20), 8);
  EXPECT_EQ(PrefetchDepth(0, 0), 2);
}

TEST(LoaderGrowthTest, AStepThatWaitsForOnePercentGetsAThread) {
  LoaderGrowth growth;
  for (int i = 0; i < 9; ++i) {
    ASSERT_FALSE(growth.Grow(absl::Microseconds(100), absl::Milliseconds(10))) << i;
  }
  EXPECT_TRUE(growth.Grow(absl::Microseconds(100), absl::Milliseconds(10)));
  // Then it is looked at anew.
  EXPECT_FALSE(growth.Grow(absl::Microseconds(100), absl::Milliseconds(10)));
}

TEST(LoaderGrowthTest, AStepThatHardlyWaitsGetsNone) {
  LoaderGrowth growth;
  for (int i = 0; i < 100; ++i) {
    ASSERT_FALSE(growth.Grow(absl::Microseconds(20), absl::Milliseconds(10))) << i;
  }
}

TEST(LoaderGrowthTest, OneLateBatchOfLongStepsIsNoReason) {
  LoaderGrowth growth;
  EXPECT_FALSE(growth.Grow(absl::Seconds(1), absl::Seconds(1)));
  EXPECT_FALSE(growth.Grow(absl::ZeroDuration(), absl::Seconds(99)));
  EXPECT_FALSE(growth.Grow(absl::ZeroDuration(), absl::Seconds(99)));
  EXPECT_FALSE(growth.Grow(absl::ZeroDuration(), absl::Seconds(99)));
  EXPECT_FALSE(growth.Grow(absl::Seconds(1), absl::Seconds(1)));
}

}  // namespace
}  // namespace gradsync
