// Many shapes of job over shared memory, with ranks that compute between launches for as long as
// chance has it: nothing may hang, no bit may differ, every byte is counted.

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "allreduce/shm_gradient_sync.h"
#include "core/group/key_value_store.h"
#include "core/plan/wire_traffic.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/run_step.h"
#include "tests/stress_job.h"

namespace gradsync {
namespace {

// Buckets on both sides of what one rank does at once.
RandomPlanLimits Limits() {
  RandomPlanLimits limits;
  limits.buckets = 8;
  limits.chunk_bytes = 64 * 200;
  limits.elements = [](int, std::mt19937_64* random) {
    return std::vector<int64_t>{20, 3000, 40000}[(*random)() % 3];
  };
  return limits;
}

struct ShmJob : StressJob {
  explicit ShmJob(uint64_t seed) {
    std::mt19937_64 random(seed);
    this->seed = seed;
    steps = 4;
    world_size = 1 + static_cast<int>(random() % 6);
    update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    max_norm = update_site == UpdateSite::kOwner && random() % 3 == 0 ? 0.5 : 0;
    plan = RandomPlan(world_size, Limits(), &random);
  }

  int world_size;
};

// Launches all buckets, with pauses, and waits for them; where the step does not clip, sometimes
// for early ones before the last is launched.
absl::Status ExchangeWithPauses(GradientSync& sync, const Plan& plan, const StepOptions& step,
                                std::mt19937_64* random) {
  std::vector<SyncHandle> handles;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    const uint64_t pause = (*random)() % 4 == 0 ? (*random)() % 40 : 0;
    for (uint64_t i = 0; i < pause; ++i) std::this_thread::yield();
    handles.push_back(sync.Launch(step, bucket));
    if (step.max_norm == 0 && (*random)() % 4 == 0) {
      const absl::Status status = handles[(*random)() % handles.size()].Wait(Soon());
      if (!status.ok()) return status;
    }
  }
  return WaitForAll(handles);
}

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  const ShmJob job(seed);
  const Trajectory expected = ReferenceTrajectory(job);
  const std::vector<NodeTraffic> per_step =
      ProcessTraffic(WindowStepFlows(job.plan), job.world_size);
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  RunRanks(job.world_size, [&](int rank) {
    ShmRingOptions options;
    options.group.rank = rank;
    options.group.world_size = job.world_size;
    options.group.run_id = "stress";
    options.group.store = store;
    options.update_site = job.update_site;
    absl::StatusOr<std::unique_ptr<GradientSync>> sync = CreateShmRingGradientSync(options);
    ASSERT_TRUE(sync.ok()) << sync.status();
    std::mt19937_64 random(seed * 10 + rank);
    const auto run_step = [&](const StepOptions& step) {
      return ExchangeWithPauses(**sync, job.plan, step, &random);
    };
    int64_t broadcast = 0;
    RunStressRank(job, expected, rank, **sync, run_step, [&](int64_t step) {
      if (step == 0) broadcast = (*sync)->wire_stats().tx_bytes;
      EXPECT_EQ((*sync)->wire_stats().tx_bytes, broadcast + step * per_step[rank].tx_bytes);
    });
  });
}

TEST(ShmStressTest, NoShapeOfJobHangsOrDiffersInABit) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    RunJob(seed);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace gradsync
