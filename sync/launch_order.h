#ifndef GRADSYNC_SYNC_LAUNCH_ORDER_H_
#define GRADSYNC_SYNC_LAUNCH_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "plan/step_options.h"

namespace gradsync {

// Holds the callers of GradientSync::Launch to the order that all ranks share: buckets 0, 1, ...,
// each once per step, steps in increasing order, the options of a step the same for all its
// buckets. Not thread-safe.
class LaunchOrder {
 public:
  explicit LaunchOrder(int buckets) : buckets_(buckets) {}

  // Call once per launch, before anything else. Errors: FAILED_PRECONDITION, saying what was
  // expected and what came.
  absl::Status Check(const StepOptions& step, int bucket);

 private:
  int buckets_;
  int next_bucket_ = 0;  // of step_; buckets_ when the step is complete
  StepOptions step_;
  bool started_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_LAUNCH_ORDER_H_
