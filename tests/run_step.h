// What every rank of a test does in a step.

#ifndef GRADSYNC_TESTS_RUN_STEP_H_
#define GRADSYNC_TESTS_RUN_STEP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/plan.h"
#include "core/plan/step_options.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// A deadline that only a hang meets.
inline Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// Launches a step's buckets, 0 to `buckets` - 1, and waits for none.
inline std::vector<SyncHandle> LaunchStep(GradientSync& sync, size_t buckets,
                                          const StepOptions& step) {
  std::vector<SyncHandle> handles;
  for (size_t b = 0; b < buckets; ++b) handles.push_back(sync.Launch(step, static_cast<int>(b)));
  return handles;
}

// Waits for all; the first error.
inline absl::Status WaitForAll(const std::vector<SyncHandle>& handles) {
  absl::Status first;
  for (const SyncHandle& handle : handles) first.Update(handle.Wait(Soon()));
  return first;
}

// Launches every bucket of a step and waits for all; the first error.
inline absl::Status RunStep(GradientSync& sync, const Plan& plan, const StepOptions& step) {
  return WaitForAll(LaunchStep(sync, plan.buckets().size(), step));
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_RUN_STEP_H_
