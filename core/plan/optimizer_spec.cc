#include "core/plan/optimizer_spec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

absl::Status CheckGroup(const OptimizerGroup& g, OptimizerKind kind, size_t index) {
  const auto wrong = [&](const char* what, const char* expected, double found) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer group ", index, ": ", what,
                                                   ": expected ", expected, ", found ", found));
  };
  const auto at_least_zero = [](double x) { return x >= 0 && std::isfinite(x); };
  if (!at_least_zero(g.lr_scale)) return wrong("lr_scale", "at least 0", g.lr_scale);
  if (!at_least_zero(g.weight_decay)) return wrong("weight_decay", "at least 0", g.weight_decay);
  if (kind == OptimizerKind::kSgd) {
    if (!at_least_zero(g.momentum)) return wrong("momentum", "at least 0", g.momentum);
    if (!std::isfinite(g.dampening)) return wrong("dampening", "a number", g.dampening);
    if (g.nesterov && g.momentum <= 0) {
      return wrong("momentum", "above 0 with nesterov", g.momentum);
    }
    if (g.nesterov && g.dampening != 0) {
      return wrong("dampening", "0 with nesterov", g.dampening);
    }
    return absl::OkStatus();
  }
  if (!(g.beta1 >= 0 && g.beta1 < 1)) return wrong("beta1", "0 <= beta1 < 1", g.beta1);
  if (!(g.beta2 >= 0 && g.beta2 < 1)) return wrong("beta2", "0 <= beta2 < 1", g.beta2);
  if (!at_least_zero(g.eps)) return wrong("eps", "at least 0", g.eps);
  return absl::OkStatus();
}

}  // namespace

absl::Status OptimizerSpec::Validate() const {
  if (groups.empty()) {
    return absl::InvalidArgumentError("optimizer: expected at least one group, found none");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    absl::Status status = CheckGroup(groups[i], kind, i);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string OptimizerKindName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
  }
  return "unknown";
}

std::vector<std::string> SlotNames(const OptimizerSpec& spec) {
  if (spec.kind != OptimizerKind::kSgd) return {"exp_avg", "exp_avg_sq"};
  const bool any_momentum = std::any_of(spec.groups.begin(), spec.groups.end(),
                                        [](const OptimizerGroup& g) { return g.momentum != 0; });
  if (any_momentum) return {"momentum_buffer"};
  return {};
}

}  // namespace gradsync
