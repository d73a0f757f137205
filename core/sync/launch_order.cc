#include "core/sync/launch_order.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::Status LaunchOrder::Check(const StepOptions& step, int bucket) {
  const bool between_steps = !started_ || next_bucket_ == buckets_;
  const int expected_bucket = between_steps ? 0 : next_bucket_;
  if (bucket != expected_bucket) {
    return absl::FailedPreconditionError(absl::StrCat("launch out of order in step ", step.step,
                                                      ": expected bucket ", expected_bucket, " of ",
                                                      buckets_, ", found bucket ", bucket));
  }
  if (between_steps) {
    if (step.step < 1 || (started_ && step.step <= step_.step)) {
      return absl::FailedPreconditionError(
          absl::StrCat("launch of step ", step.step, ": expected a step after ", step_.step));
    }
    GS_RETURN_IF_ERROR(CheckResolved(step));
    handles_.clear();
    step_ = step;
    started_ = true;
  } else if (step != step_) {
    return absl::FailedPreconditionError(
        absl::StrCat("launch of bucket ", bucket, ": expected the options of step ", step_.step,
                     " with lr ", step_.lr, ", found step ", step.step, " with lr ", step.lr));
  }
  next_bucket_ = bucket + 1;
  return absl::OkStatus();
}

absl::Status LaunchOrder::CheckResolved(const StepOptions& next) const {
  for (size_t bucket = 0; bucket < handles_.size(); ++bucket) {
    if (handles_[bucket].done()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("launch of step ", next.step, ": expected all handles of step ", step_.step,
                     " to be resolved, found that of bucket ", bucket, " open"));
  }
  return absl::OkStatus();
}

SyncHandle LaunchOrder::Launched(SyncHandle handle) {
  handles_.push_back(handle);
  return handle;
}

}  // namespace gradsync
