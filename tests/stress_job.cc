#include "tests/stress_job.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/run_step.h"

namespace gradsync {

Plan RandomPlan(int world_size, const RandomPlanLimits& limits, std::mt19937_64* random) {
  const auto up_to = [random](int64_t most) {
    return 1 + static_cast<int64_t>((*random)() % static_cast<uint64_t>(most));
  };
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  const int count = static_cast<int>(up_to(limits.buckets));
  for (int i = 0; i < count; ++i) {
    const int64_t most = limits.elements(i, random);
    tensors.push_back({"t" + std::to_string(i), {up_to(most)}, {1}, 0});
    buckets.push_back({i});
  }
  return *Plan::FromBuckets(tensors, buckets, optimizer, world_size,
                            64 * up_to(limits.chunk_bytes / 64));
}

StepOptions StressJob::Step(int64_t number) const {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  step.max_norm = max_norm;
  return step;
}

FlatValues StressJob::Gradient(int rank, int64_t step) const {
  return RandomValues(plan, 1000 * seed + 10 * step + rank);
}

Trajectory ReferenceTrajectory(const StressJob& job) {
  Trajectory trajectory;
  trajectory.means.emplace_back();
  trajectory.params.push_back(RandomValues(job.plan, job.seed));
  ReferenceOptimizer reference(job.plan);
  for (int64_t s = 1; s <= job.steps; ++s) {
    std::vector<FlatValues> all;
    for (int rank = 0; rank < job.plan.world_size(); ++rank) all.push_back(job.Gradient(rank, s));
    trajectory.means.push_back(ReferenceMean(job.plan, all, 1));
    trajectory.params.push_back(trajectory.params.back());
    reference.Apply(job.Step(s), trajectory.means.back(), &trajectory.params.back());
  }
  return trajectory;
}

void RunStressRank(const StressJob& job, const Trajectory& expected, int rank, GradientSync& sync,
                   const std::function<absl::Status(const StepOptions& step)>& run_step,
                   const std::function<void(int64_t step)>& check) {
  SCOPED_TRACE(job.seed);
  absl::StatusOr<std::vector<GradBucket>> buckets = sync.Bind(job.plan, Soon());
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  if (rank == 0) Write(expected.params[0], *buckets, &GradBucket::param);
  ASSERT_EQ(sync.BroadcastParameters(Soon()), absl::OkStatus());
  check(0);
  for (int64_t s = 1; s <= job.steps; ++s) {
    Write(job.Gradient(rank, s), *buckets, &GradBucket::grad);
    ASSERT_EQ(run_step(job.Step(s)), absl::OkStatus());
    if (job.update_site == UpdateSite::kOwner) {
      ASSERT_EQ(Read(*buckets, &GradBucket::param), expected.params[s]);
    } else {
      ASSERT_EQ(Read(*buckets, &GradBucket::grad), expected.means[s]);
    }
    check(s);
  }
  ASSERT_EQ(sync.Shutdown(Soon()), absl::OkStatus());
}

}  // namespace gradsync
