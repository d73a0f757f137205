#include "plan/step_options.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

std::string DescribeStep(const StepOptions& step) {
  return absl::StrCat("step ", step.step, " (lr ", step.lr, ", max_norm ", step.max_norm,
                      ", inverse_loss_scale ", step.inverse_loss_scale, ")");
}

}  // namespace gradsync
