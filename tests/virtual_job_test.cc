#include "tests/virtual_job.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// More of them: bazel run //tests:virtual_cluster -- --seeds=100000 (docs/internals/testing.md).
TEST(VirtualJobTest, NobodyHangsNoBitIsWrongAndNoInnocentIsBlamed) {
  int64_t struck = 0;
  int64_t named = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const VirtualJobOptions options = DrawVirtualJob(seed);
    const VirtualJobResult result = RunVirtualJob(options);
    EXPECT_EQ(result.complaint, "")
        << "//tests:virtual_cluster --seed=" << seed << ": " << DescribeVirtualJob(options);
    struck += result.fault_happened;
    named += result.named;
  }
  EXPECT_GT(struck, 300);  // else the faults come too late
  EXPECT_GT(named, 300);
}

// Where a message may take a second, a server that ended 0.7 s after the last goodbye cut streams off.
TEST(VirtualJobTest, AServerLetsStreamsOfASlowNetworkClose) {
  for (const uint64_t seed : {4721, 6354, 12155, 17693, 19383}) {
    const VirtualJobOptions options = DrawVirtualJob(seed);
    EXPECT_EQ(RunVirtualJob(options).complaint, "") << seed << ": " << DescribeVirtualJob(options);
  }
}

TEST(VirtualJobTest, TheSameSeedIsTheSameRun) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const VirtualJobResult first = RunVirtualJob(DrawVirtualJob(seed));
    const VirtualJobResult second = RunVirtualJob(DrawVirtualJob(seed));
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.switches, second.switches) << seed;
  }
}

// In the middle of training, at one change of threads after another.
TEST(VirtualJobTest, AProcessMayDieAtEveryMoment) {
  for (int servers = 0; servers <= 1; ++servers) {
    for (int64_t at = 0; at < 400; at += 3) {
      VirtualJobOptions options;
      options.seed = 7;
      options.servers = servers;
      options.steps = 2;
      options.fault = VirtualFault::kKill;
      options.victim = 1;
      options.fault_at = at;
      EXPECT_EQ(RunVirtualJob(options).complaint, "") << servers << " servers, at " << at;
    }
  }
}

}  // namespace
}  // namespace gradsync
