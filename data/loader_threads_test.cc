#include "data/loader_threads.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// One thread fed every GPU.
TEST(LoaderThreadsTest, AGpuIsFedByItsShareOfTheCores) {
  EXPECT_EQ(ChooseLoaderThreads(0, /*on_gpu=*/true, 16, 1), 8);
  EXPECT_EQ(ChooseLoaderThreads(0, true, 16, 2), 7);
  EXPECT_EQ(ChooseLoaderThreads(0, true, 16, 4), 3);
  EXPECT_EQ(ChooseLoaderThreads(0, true, 2, 8), 1);
  EXPECT_EQ(ChooseLoaderThreads(0, true, 1, 0), 1);
}

TEST(LoaderThreadsTest, ACpuHasOne) {
  EXPECT_EQ(ChooseLoaderThreads(0, /*on_gpu=*/false, 64, 1), 1);
}

TEST(LoaderThreadsTest, WhoAsksGetsThatMany) {
  EXPECT_EQ(ChooseLoaderThreads(3, true, 16, 1), 3);
  EXPECT_EQ(ChooseLoaderThreads(12, false, 2, 1), 12);
}

}  // namespace
}  // namespace gradsync
