#include "benchmarks/options/shared_gpu.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(SharedGpuTest, RanksShareGpusInOrder) {
  EXPECT_EQ(GpusOf(2, 1), 2);
  EXPECT_EQ(GpusOf(2, 2), 1);
  EXPECT_EQ(GpusOf(5, 2), 3);
  EXPECT_EQ(GpuOf(1, 2), 0);
  EXPECT_EQ(GpuOf(2, 2), 1);
}

TEST(SharedGpuTest, NcclTakesEachRankForAHostOfItsOwn) {
  EXPECT_THAT(SharedGpuEnvironment(0), Contains("NCCL_HOSTID=gradsync-test-0"));
  EXPECT_THAT(SharedGpuEnvironment(1), Contains("NCCL_HOSTID=gradsync-test-1"));
  EXPECT_THAT(SharedGpuEnvironment(1), Contains("NCCL_SOCKET_IFNAME==lo"));  // "=lo": no other
  EXPECT_THAT(SharedGpuNote(2), HasSubstr("2 ranks share a GPU"));
}

TEST(SharedGpuTest, OnlyRanksWithGpusByTheirNumberCanShareThem) {
  EXPECT_TRUE(CheckRanksPerGpu(1, "cpu").ok());
  EXPECT_TRUE(CheckRanksPerGpu(2, "cuda").ok());
  for (const char* device : {"cpu", "cuda:0", ""}) {
    EXPECT_THAT(CheckRanksPerGpu(2, device).message(), HasSubstr("--ranks_per_gpu")) << device;
  }
  EXPECT_THAT(CheckRanksPerGpu(0, "cuda").message(), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace gradsync
