#include "core/plan/step_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

absl::Status CheckField(absl::string_view field, bool good, absl::string_view expected,
                        double found) {
  if (good && std::isfinite(found)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("step: ", field, ": expected a finite number ", expected, ", found ", found));
}

}  // namespace

std::string DescribeStep(const StepOptions& step) {
  return absl::StrCat("step ", step.step, " (lr ", step.lr, ", max_norm ", step.max_norm,
                      ", inverse_loss_scale ", step.inverse_loss_scale, ")");
}

absl::Status CheckStep(const StepOptions& step) {
  if (step.step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected a number of at least 1, found ", step.step));
  }
  GS_RETURN_IF_ERROR(CheckField("lr", step.lr >= 0, "of at least 0", step.lr));
  GS_RETURN_IF_ERROR(CheckField("max_norm", step.max_norm >= 0, "of at least 0", step.max_norm));
  return CheckField("inverse_loss_scale", step.inverse_loss_scale > 0, "above 0",
                    step.inverse_loss_scale);
}

double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares) {
  double sum = 0;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    const StripeLayout& layout = plan.buckets()[bucket].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (!layout.range(slot).empty()) sum += squares({bucket, slot});
    }
  }
  const double scale = max_norm / (std::sqrt(sum) + 1e-6);
  return scale < 1 ? scale : 1;
}

}  // namespace gradsync
