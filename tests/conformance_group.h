// A running group for the tests of tests/conformance_suite.h, and what they exchange.

#ifndef GRADSYNC_TESTS_CONFORMANCE_GROUP_H_
#define GRADSYNC_TESTS_CONFORMANCE_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
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

  void Write(const FlatValues& values, FlatBuffer GradBucket::*which) {
    gradsync::Write(values, buckets, which);
  }

  FlatValues Read(FlatBuffer GradBucket::*which) const { return gradsync::Read(buckets, which); }

  // Launches every bucket and waits for all, on a GPU until it has done them; the first error.
  absl::Status Exchange(const StepOptions& step);
};

// A group of ranks over one store: as threads, over their own; as processes, over that of all
// tests.
class Group {
 public:
  // `part` tells groups of one test apart.
  explicit Group(const ConformanceCase& config, absl::string_view part = "");

  WorkerGroup worker(int rank) const;

  // Whether `rank` runs in this process.
  bool here(int rank) const { return process_ == nullptr || process_->rank == rank; }

  // Runs `body` for each rank that is here, on a thread of its own if there are several.
  void ForEachRank(const std::function<void(int rank)>& body);

  // Waits until all ranks have come, once.
  void Meet(int rank);

  // Creates and binds every rank, then runs `body` on the rank's thread.
  void Run(const std::function<Plan(int rank)>& plan,
           const std::function<void(int rank, Rank&)>& body);

  BackendFixture& fixture() { return *fixture_; }

 private:
  const int world_size_;
  const std::shared_ptr<const RankProcess> process_;
  const std::shared_ptr<KeyValueStore> store_;
  const std::string run_id_;
  const std::unique_ptr<BackendFixture> fixture_;
};

}  // namespace gradsync::conformance

#endif  // GRADSYNC_TESTS_CONFORMANCE_GROUP_H_
