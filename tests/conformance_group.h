// A running group for the tests of tests/conformance_suite.h, and what they exchange.

#ifndef GRADSYNC_TESTS_CONFORMANCE_GROUP_H_
#define GRADSYNC_TESTS_CONFORMANCE_GROUP_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "links/key_value_store.h"
#include "plan/plan.h"
#include "plan/step_options.h"
#include "sync/gradient_sync.h"
#include "sync/worker_group.h"
#include "tests/bucket_values.h"
#include "tests/conformance_suite.h"
#include "tests/run_step.h"

namespace gradsync::conformance {

OptimizerSpec Momentum();

// Uneven on purpose: a bucket below n elements of payload, one of many stripes with a cut tail, and
// one whose last stripe has empty chunks; small chunks make many of them.
Plan UnevenPlan(int world_size, OptimizerSpec optimizer);

StepOptions Step(int64_t number, double lr = 0.05);

// Gradients of all ranks in a step.
std::vector<FlatValues> Gradients(const Plan& plan, int64_t step);

// One rank's view of a running group.
struct Rank {
  std::unique_ptr<GradientSync> sync;
  std::vector<GradBucket> buckets;

  void Write(const FlatValues& values, at::Tensor GradBucket::*which) {
    gradsync::Write(values, buckets, which);
  }

  FlatValues Read(at::Tensor GradBucket::*which) const { return gradsync::Read(buckets, which); }

  // Launches every bucket and waits for all; the first error.
  absl::Status Exchange(const StepOptions& step) {
    return WaitForAll(LaunchStep(*sync, buckets.size(), step));
  }
};

// A group of ranks as threads over one in-memory store.
class Group {
 public:
  explicit Group(const ConformanceCase& config);

  WorkerGroup worker(int rank) const;

  // Creates and binds every rank, then runs `body` on the rank's thread.
  void Run(const std::function<Plan(int rank)>& plan,
           const std::function<void(int rank, Rank&)>& body);

  BackendFixture& fixture() { return *fixture_; }

 private:
  const int world_size_;
  std::shared_ptr<KeyValueStore> store_;
  std::unique_ptr<BackendFixture> fixture_;
};

}  // namespace gradsync::conformance

#endif  // GRADSYNC_TESTS_CONFORMANCE_GROUP_H_
