#include "worker/train/step_log.h"

namespace gradsync {

void StepLog::Add(const LoggedStep& step) {
  if (++added_ % stride_ != 0) return;
  kept_.push_back(step);
  if (kept_.size() < most_) return;
  for (size_t i = 0; i < most_ / 2; ++i) kept_[i] = kept_[2 * i + 1];
  kept_.resize(most_ / 2);
  stride_ *= 2;
}

}  // namespace gradsync
