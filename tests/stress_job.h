// Jobs that chance chooses, and what their ranks must end with.

#ifndef GRADSYNC_TESTS_STRESS_JOB_H_
#define GRADSYNC_TESTS_STRESS_JOB_H_

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "tests/reference.h"

namespace gradsync {

// What a RandomPlan() may be, each from 1 on.
struct RandomPlanLimits {
  int buckets = 4;
  int64_t chunk_bytes = 512;  // a multiple of 64, as all that are chosen

  // Elements of a bucket, given its index; may draw, too.
  std::function<int64_t(int bucket, std::mt19937_64* random)> elements =
      [](int bucket, std::mt19937_64*) { return bucket % 2 == 0 ? 3000 : 20; };
};

// A tensor in each bucket, and momentum. A function of its arguments alone.
Plan RandomPlan(int world_size, const RandomPlanLimits& limits, std::mt19937_64* random);

// Gradients and first parameters are a function of the seed.
struct StressJob {
  StepOptions Step(int64_t number) const;
  FlatValues Gradient(int rank, int64_t step) const;

  uint64_t seed = 0;
  int64_t steps = 3;
  UpdateSite update_site = UpdateSite::kWorker;
  double max_norm = 0;
  Plan plan;
};

// By step, from 1 on; 0 is what rank 0 starts with, for which there is no mean.
struct Trajectory {
  std::vector<FlatValues> means;
  std::vector<FlatValues> params;
};
Trajectory ReferenceTrajectory(const StressJob& job);

// A rank's part from Bind() to Shutdown(): after each step the parameters, or with update at the
// workers the means, must have the bits of `expected`. `run_step` exchanges a step's gradients;
// `check` comes after the broadcast, with 0, and after each step, with its number. Failures are
// GoogleTest's; the first that is fatal ends it.
void RunStressRank(const StressJob& job, const Trajectory& expected, int rank, GradientSync& sync,
                   const std::function<absl::Status(const StepOptions& step)>& run_step,
                   const std::function<void(int64_t step)>& check);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_STRESS_JOB_H_
