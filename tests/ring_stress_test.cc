// Many shapes of job over a link that delays and reorders: nothing may hang, no bit may differ,
// every byte is counted.

#include <random>

#include "core/links/in_process_stream.h"
#include "core/plan/ring_schedule.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/ring_group.h"
#include "tests/run_step.h"
#include "tests/stress_job.h"

namespace gradsync {
namespace {

struct RingJob : StressJob {
  explicit RingJob(uint64_t seed) {
    std::mt19937_64 random(seed);
    this->seed = seed;
    world_size = 1 + static_cast<int>(random() % 6);
    base.update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    update_site = base.update_site;
    base.connections = 1 + static_cast<int>(random() % 4);
    base.lead = 1 + static_cast<int>(random() % 4);
    const bool clips = random() % 3 == 0;
    max_norm = clips && update_site == UpdateSite::kOwner ? 0.5 : 0;
    InProcessLinkOptions link;
    link.split_payloads = random() % 2 == 0;
    link.max_delay = absl::Microseconds(random() % 300);
    link.seed = seed;
    base.link = NewInProcessLink(link);
    plan = RandomPlan(world_size, RandomPlanLimits(), &random);
  }

  int world_size;
  RingOptions base;
};

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  const RingJob job(seed);
  const Trajectory expected = ReferenceTrajectory(job);
  const RingGroup group(job.world_size, job.base);
  RunRanks(job.world_size, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    const int64_t broadcast = BroadcastTraffic(job.plan, rank).tx_bytes;
    const int64_t per_step = StepTraffic(job.plan, rank).tx_bytes;
    const auto run_step = [&](const StepOptions& step) { return RunStep(*sync, job.plan, step); };
    RunStressRank(job, expected, rank, *sync, run_step, [&](int64_t step) {
      if (step == 0) return;
      EXPECT_EQ(sync->wire_stats().tx_bytes, broadcast + step * per_step);
    });
  });
}

TEST(RingStressTest, NoShapeOfJobHangsOrDiffersInABit) {
  for (uint64_t seed = 0; seed < 240; ++seed) {
    RunJob(seed);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gradsync
