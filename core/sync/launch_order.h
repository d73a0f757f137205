#ifndef GRADSYNC_CORE_SYNC_LAUNCH_ORDER_H_
#define GRADSYNC_CORE_SYNC_LAUNCH_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/group/sync_handle.h"
#include "core/plan/step_options.h"

namespace gradsync {

// Holds the callers of GradientSync::Launch to the order that all ranks share: buckets 0, 1, ...,
// each once per step, steps in increasing order, the options of a step the same for all its
// buckets, and no step before all handles of the one before are resolved. Every backend has one, so
// that a caller who breaks the order is told so by all of them. Not thread-safe.
class LaunchOrder {
 public:
  explicit LaunchOrder(int buckets) : buckets_(buckets) { handles_.reserve(buckets); }

  // Call once per launch, before anything else. Errors: FAILED_PRECONDITION, saying what was
  // expected and what came.
  absl::Status Check(const StepOptions& step, int bucket);

  // Call with the handle of each launch that Check() admitted; returns it.
  SyncHandle Launched(SyncHandle handle);

 private:
  absl::Status CheckResolved(const StepOptions& next) const;

  int buckets_;
  int next_bucket_ = 0;  // of step_; buckets_ when the step is complete
  StepOptions step_;
  bool started_ = false;
  std::vector<SyncHandle> handles_;  // of step_, by bucket
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_LAUNCH_ORDER_H_
