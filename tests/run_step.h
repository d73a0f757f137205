// What every rank of a test does in a step, and what is in its buckets.

#ifndef GRADSYNC_TESTS_RUN_STEP_H_
#define GRADSYNC_TESTS_RUN_STEP_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "tests/reference.h"

namespace gradsync {

// What the buckets hold in `which`, &GradBucket::grad or &GradBucket::param: all of each tensor,
// padding too. On a GPU, as of the calling thread's compute stream, which is waited for.
FlatValues Read(const std::vector<GradBucket>& buckets, FlatBuffer GradBucket::*which);

// The other way, for values of the same sizes.
void Write(const FlatValues& values, const std::vector<GradBucket>& buckets,
           FlatBuffer GradBucket::*which);

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
