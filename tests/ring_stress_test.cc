// Many shapes of job over a link that delays and reorders: nothing may hang, no bit may differ,
// every byte is counted.

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "links/in_process_stream.h"
#include "plan/ring_schedule.h"
#include "tests/rank_threads.h"
#include "tests/ring_group.h"

namespace gradsync {
namespace {

struct Job {
  explicit Job(uint64_t seed) : random(seed) {
    world_size = 1 + static_cast<int>(random() % 6);
    base.update_site = random() % 2 == 0 ? UpdateSite::kWorker : UpdateSite::kOwner;
    base.connections = 1 + static_cast<int>(random() % 4);
    base.window = 1 + static_cast<int>(random() % 4);
    max_norm = random() % 3 == 0 ? 0.5 : 0;
    InProcessLinkOptions link;
    link.split_payloads = random() % 2 == 0;
    link.max_delay = absl::Microseconds(random() % 300);
    link.seed = seed;
    base.link = NewInProcessLink(link);
    plan = MakePlan();
  }

  Plan MakePlan() {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    optimizer.groups[0].momentum = 0.9;
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<int>> buckets;
    const int count = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < count; ++i) {
      const int64_t numel = 1 + static_cast<int64_t>(random() % (i % 2 == 0 ? 3000 : 20));
      tensors.push_back({"t" + std::to_string(i), {numel}, {1}, 0});
      buckets.push_back({i});
    }
    return *Plan::FromBuckets(tensors, buckets, optimizer, world_size,
                              64 * static_cast<int64_t>(1 + random() % 8));
  }

  StepOptions Step(int64_t number) const {
    StepOptions step;
    step.step = number;
    step.lr = 0.1;
    step.max_norm = base.update_site == UpdateSite::kOwner ? max_norm : 0;
    return step;
  }

  std::mt19937_64 random;
  int world_size;
  RingOptions base;
  double max_norm;
  Plan plan;
};

void RunJob(uint64_t seed) {
  SCOPED_TRACE(seed);
  constexpr int kSteps = 3;
  const Job job(seed);
  const Plan& plan = job.plan;
  const bool owner = job.base.update_site == UpdateSite::kOwner;
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
  const RingGroup group(job.world_size, job.base);
  RunRanks(job.world_size, [&](int rank) {
    SCOPED_TRACE(seed);
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    absl::StatusOr<std::vector<GradBucket>> buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    if (rank == 0) Write(params[0], *buckets, &GradBucket::param);
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    const int64_t broadcast = BroadcastTraffic(plan, rank).tx_bytes;
    for (int64_t s = 1; s <= kSteps; ++s) {
      Write(gradient(rank, s), *buckets, &GradBucket::grad);
      ASSERT_EQ(RunStep(*sync, plan, job.Step(s)), absl::OkStatus());
      if (owner) {
        ASSERT_EQ(Read(*buckets, &GradBucket::param), params[s]);
      } else {
        ASSERT_EQ(Read(*buckets, &GradBucket::grad), means[s]);
      }
      EXPECT_EQ(sync->wire_stats().tx_bytes, broadcast + s * StepTraffic(plan, rank).tx_bytes);
    }
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
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
