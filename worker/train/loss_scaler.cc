#include "worker/train/loss_scaler.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status LossScaler::Update(bool skipped) {
  if (skipped) {
    good_steps_ = 0;
    scale_ *= options_.backoff;
    if (scale_ >= kSmallest) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "gradients are not finite at any loss scale down to ", scale_ / options_.backoff,
        ": expected one at which they are; the training has diverged, try a smaller --lr"));
  }
  if (++good_steps_ < options_.growth_interval) return absl::OkStatus();
  good_steps_ = 0;
  const double grown = scale_ * options_.growth;
  if (grown <= std::numeric_limits<float>::max()) scale_ = grown;
  return absl::OkStatus();
}

}  // namespace gradsync
