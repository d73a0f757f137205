// Which optimizer updates the parameters, and with which constants: part of the plan, so that every
// rank and every owner runs the same one. The learning rate is not here; it travels with each step.

#ifndef GRADSYNC_CORE_PLAN_OPTIMIZER_SPEC_H_
#define GRADSYNC_CORE_PLAN_OPTIMIZER_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gradsync {

enum class OptimizerKind { kSgd, kAdam, kAdamW };

// Constants of a group of parameters, named and meant as in torch::optim. Those of the other kinds
// are ignored.
struct OptimizerGroup {
  double lr_scale = 1;  // the group's learning rate is the step's times this
  double weight_decay = 0;

  double momentum = 0;  // SGD
  double dampening = 0;
  bool nesterov = false;

  double beta1 = 0.9;  // Adam, AdamW
  double beta2 = 0.999;
  double eps = 1e-8;

  friend bool operator==(const OptimizerGroup& a, const OptimizerGroup& b) {
    return a.lr_scale == b.lr_scale && a.weight_decay == b.weight_decay &&
           a.momentum == b.momentum && a.dampening == b.dampening && a.nesterov == b.nesterov &&
           a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps;
  }
};

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kSgd;
  std::vector<OptimizerGroup> groups;  // TensorSpec::group is an index into this

  // Errors: INVALID_ARGUMENT naming the group, the constant, what was expected and what came.
  absl::Status Validate() const;

  friend bool operator==(const OptimizerSpec& a, const OptimizerSpec& b) {
    return a.kind == b.kind && a.groups == b.groups;
  }
};

// "sgd", "adam", "adamw".
std::string OptimizerKindName(OptimizerKind kind);

// Names of the per-element state, as in PyTorch's state_dict: none for SGD without momentum in any
// group,
// {"momentum_buffer"} for SGD with it, {"exp_avg", "exp_avg_sq"} for Adam and AdamW.
std::vector<std::string> SlotNames(const OptimizerSpec& spec);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_OPTIMIZER_SPEC_H_
