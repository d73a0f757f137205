// Many shapes of job over shared memory, with ranks that compute between launches for as long as
// chance has it: nothing may hang, no bit may differ, every byte is counted.

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allreduce/shm_gradient_sync.h"
#include "gtest/gtest.h"
#include "links/in_memory_store.h"
#include "plan/wire_traffic.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"
#include "tests/ring_group.h"

namespace gradsync {
namespace {

struct Job {
  explicit Job(uint64_t seed) : random(seed) {
    world_size = 1 + static_cast<int>(random() % 6);
    update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    max_norm = update_site == UpdateSite::kOwner && random() % 3 == 0 ? 0.5 : 0;
    plan = MakePlan();
  }

  // Buckets on both sides of what one rank does at once.
  Plan MakePlan() {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    optimizer.groups[0].momentum = 0.9;
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<int>> buckets;
    const int count = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < count; ++i) {
      const uint64_t most = std::vector<uint64_t>{20, 3000, 40000}[random() % 3];
      tensors.push_back(
          {"t" + std::to_string(i), {1 + static_cast<int64_t>(random() % most)}, {1}, 0});
      buckets.push_back({i});
    }
    return *Plan::FromBuckets(tensors, buckets, optimizer, world_size,
                              64 * static_cast<int64_t>(1 + random() % 200));
  }

  StepOptions Step(int64_t number) const {
    StepOptions step;
    step.step = number;
    step.lr = 0.1;
    step.max_norm = max_norm;
    return step;
  }

  std::mt19937_64 random;
  int world_size;
  UpdateSite update_site;
  double max_norm;
  Plan plan;
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
  absl::Status status;
  for (const SyncHandle& handle : handles) status.Update(handle.Wait(Soon()));
  return status;
}

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  constexpr int kSteps = 4;
  const Job job(seed);
  const Plan& plan = job.plan;
  std::vector<FlatValues> means(1);
  std::vector<FlatValues> params = {RandomValues(plan, seed)};
  ReferenceOptimizer reference(plan);
  const auto gradient = [&](int rank, int64_t step) {
    return RandomValues(plan, 1000 * seed + 10 * step + rank);
  };
  for (int64_t s = 1; s <= kSteps; ++s) {
    std::vector<FlatValues> all;
    for (int rank = 0; rank < job.world_size; ++rank) all.push_back(gradient(rank, s));
    means.push_back(ReferenceMean(plan, all, 1));
    params.push_back(params.back());
    reference.Apply(job.Step(s), means.back(), &params.back());
  }
  const std::vector<NodeTraffic> per_step = ProcessTraffic(WindowStepFlows(plan), job.world_size);
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  RunRanks(job.world_size, [&](int rank) {
    SCOPED_TRACE(seed);
    ShmRingOptions options;
    options.group.rank = rank;
    options.group.world_size = job.world_size;
    options.group.run_id = "stress";
    options.group.store = store;
    options.update_site = job.update_site;
    absl::StatusOr<std::unique_ptr<GradientSync>> sync = CreateShmRingGradientSync(options);
    ASSERT_TRUE(sync.ok()) << sync.status();
    absl::StatusOr<std::vector<GradBucket>> buckets = (*sync)->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    if (rank == 0) Write(params[0], *buckets, &GradBucket::param);
    ASSERT_EQ((*sync)->BroadcastParameters(Soon()), absl::OkStatus());
    const int64_t broadcast = (*sync)->wire_stats().tx_bytes;
    std::mt19937_64 random(seed * 10 + rank);
    for (int64_t s = 1; s <= kSteps; ++s) {
      Write(gradient(rank, s), *buckets, &GradBucket::grad);
      ASSERT_EQ(ExchangeWithPauses(**sync, plan, job.Step(s), &random), absl::OkStatus());
      if (job.update_site == UpdateSite::kOwner) {
        ASSERT_EQ(Read(*buckets, &GradBucket::param), params[s]);
      } else {
        ASSERT_EQ(Read(*buckets, &GradBucket::grad), means[s]);
      }
      EXPECT_EQ((*sync)->wire_stats().tx_bytes, broadcast + s * per_step[rank].tx_bytes);
    }
    ASSERT_EQ((*sync)->Shutdown(Soon()), absl::OkStatus());
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
