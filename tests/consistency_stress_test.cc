// 8 workers of random speed and 3 servers over a link that delays and reorders, 1,000 steps: the
// rules of docs/use/consistency.md hold at every event of the servers' logs.

#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "tests/staleness_job.h"

namespace gradsync {
namespace {

constexpr int kWorkers = 8;

// Ranks of one group do the same work or 5 % less, so that some leave while others train.
StalenessJob Job(const std::string& consistency, uint64_t seed, int64_t steps) {
  StalenessJob job;
  job.consistency = consistency;
  job.servers = 3;
  job.seed = seed;
  for (int rank = 0; rank < kWorkers; ++rank) job.steps.push_back(steps - steps / 20 * (rank % 2));
  InProcessLinkOptions link;
  link.split_payloads = true;
  link.max_delay = absl::Microseconds(50);
  link.seed = seed;
  job.link = NewInProcessLink(link);
  // Now and then a rank lets the others go first for a while, whatever work that is.
  job.pause = [seed](int rank, int64_t step) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + step);
    const uint64_t kind = random() % 16;
    const uint64_t yields = kind == 0 ? 3000 : kind < 4 ? 300 : 0;
    for (uint64_t i = 0; i < yields; ++i) std::this_thread::yield();
  };
  return job;
}

TEST(ConsistencyStress, Ssp2HoldsItsBoundThroughAThousandSteps) {
  const StalenessResult result = RunStalenessJob(Job("ssp:2", 1, 1000));
  EXPECT_EQ(result.max_staleness, 2);
  EXPECT_GT(result.waits, 0);
}

TEST(ConsistencyStress, AspNeverWaitsThroughAThousandSteps) {
  const StalenessResult result = RunStalenessJob(Job("asp", 2, 1000));
  EXPECT_GT(result.max_staleness, 2);
  EXPECT_EQ(result.waits, 0);
}

TEST(ConsistencyStress, Ssp0OrdersThreeHundredStepsAsBspDoes) {
  EXPECT_EQ(RunStalenessJob(Job("ssp:0", 3, 300)).max_staleness, 0);
}

TEST(ConsistencyStress, AllBoundsHoldWhateverTheSeed) {
  for (uint64_t seed = 10; seed < 22 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const int64_t bound = static_cast<int64_t>(seed % 4);
    StalenessJob job = Job("ssp:" + std::to_string(bound), seed, 40);
    job.connections = 1 + static_cast<int>(seed % 3);
    job.lead = 1 + static_cast<int>(seed % 5);
    job.phases = 2;
    RunStalenessJob(job);
  }
}

}  // namespace
}  // namespace gradsync
