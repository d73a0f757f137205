// Many shapes of job over a link that delays and reorders: nothing may hang, no bit may differ.

#include <random>

#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"
#include "tests/stress_job.h"

namespace gradsync {
namespace {

struct PsJob : StressJob {
  explicit PsJob(uint64_t seed) {
    std::mt19937_64 random(seed);
    this->seed = seed;
    world_size = 1 + static_cast<int>(random() % 6);
    servers = 1 + static_cast<int>(random() % 4);
    base.update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    update_site = base.update_site;
    base.connections = 1 + static_cast<int>(random() % 4);
    base.lead = 1 + static_cast<int>(random() % 9);
    if (random() % 2 == 0) {
      for (int i = 0; i < servers; ++i) base.weights.push_back(1 + random() % 5);
    }
    max_norm = random() % 3 == 0 ? 0.5 : 0;
    link.split_payloads = random() % 2 == 0;
    link.max_delay = absl::Microseconds(random() % 300);
    link.seed = seed;
    plan = RandomPlan(world_size, RandomPlanLimits(), &random);
  }

  int world_size;
  int servers;
  PsOptions base;
  InProcessLinkOptions link;
};

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  const PsJob job(seed);
  const Trajectory expected = ReferenceTrajectory(job);
  PsGroup group(NewInProcessLink(job.link), job.world_size, job.servers, job.base);
  RunRanks(job.world_size, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    const auto run_step = [&](const StepOptions& step) { return RunStep(*sync, job.plan, step); };
    RunStressRank(job, expected, rank, *sync, run_step, [&](int64_t step) {
      if (step < job.steps) return;
      // Every byte is pushed once and pulled once, per step.
      const int64_t whole = job.plan.total_bytes();
      EXPECT_EQ(sync->wire_stats().tx_bytes, job.steps * whole + (rank == 0 ? whole : 0));
      EXPECT_EQ(sync->wire_stats().rx_bytes, job.steps * whole + (rank == 0 ? 0 : whole));
    });
  });
  for (int i = 0; i < job.servers; ++i) EXPECT_EQ(group.server(i).Wait(), absl::OkStatus());
}

TEST(PsStress, NoShapeOfJobHangsOrDiffersInOneBit) {
  for (uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) RunJob(seed);
}

}  // namespace
}  // namespace gradsync
