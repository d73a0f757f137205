#include "sync/launch_order.h"

#include "absl/strings/str_cat.h"

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

}  // namespace gradsync
