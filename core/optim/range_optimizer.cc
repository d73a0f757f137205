#include "core/optim/range_optimizer.h"

#include <utility>

#include "core/base/kernels.h"

namespace gradsync {

RangeOptimizer::RangeOptimizer(const OptimizerSpec& spec, ElementRange range,
                               std::vector<GroupRange> groups)
    : RangeOptimizer(std::make_shared<const Shared>(spec), range, std::move(groups)) {}

RangeOptimizer::RangeOptimizer(std::shared_ptr<const Shared> shared, ElementRange range,
                               std::vector<GroupRange> groups)
    : shared_(std::move(shared)),
      size_(range.size()),
      groups_(std::move(groups)),
      slots_(slot_names().size()) {
  for (GroupRange& group : groups_) {
    group.range = {group.range.begin - range.begin, group.range.end - range.begin};
  }
}

void RangeOptimizer::Apply(float* param, const float* grad, double lr, int64_t step) {
  const bool first_step = !has_state_;
  EnsureState();
  const OptimizerSpec& spec = shared_->spec;
  for (const GroupRange& g : groups_) {
    const OptimizerGroup& group = spec.groups[g.group];
    const double group_lr = lr * group.lr_scale;
    const size_t n = static_cast<size_t>(g.range.size());
    const int64_t begin = g.range.begin;
    float* const p = param + begin;
    const float* const d = grad + begin;
    if (spec.kind == OptimizerKind::kSgd) {
      float* const buffer = slots_.empty() ? nullptr : slots_[0].data() + begin;
      SgdStep(MakeSgdCoefficients(group_lr, group.momentum, group.dampening, group.weight_decay,
                                  group.nesterov, first_step),
              p, d, buffer, n);
    } else {
      const AdamDecay decay =
          spec.kind == OptimizerKind::kAdamW ? AdamDecay::kDecoupled : AdamDecay::kAddedToGradient;
      AdamStep(MakeAdamCoefficients(group_lr, group.beta1, group.beta2, group.eps,
                                    group.weight_decay, decay, step),
               p, d, slots_[0].data() + begin, slots_[1].data() + begin, n);
    }
  }
}

absl::Span<float> RangeOptimizer::mutable_slot(int index) {
  EnsureState();
  return absl::MakeSpan(slots_[index]);
}

void RangeOptimizer::ClearState() {
  has_state_ = false;
  for (std::vector<float>& slot : slots_) std::vector<float>().swap(slot);
}

void RangeOptimizer::EnsureState() {
  if (has_state_) return;
  for (std::vector<float>& slot : slots_) slot.assign(static_cast<size_t>(size_), 0.0f);
  has_state_ = true;
}

OptimizerSpec PartialUpdateSpec(OptimizerSpec spec, int parts) {
  const double n = parts;
  for (OptimizerGroup& group : spec.groups) {
    // AdamW's decay is multiplied by the rate, which is divided already.
    if (spec.kind != OptimizerKind::kAdamW) group.weight_decay /= n;
    if (spec.kind == OptimizerKind::kSgd) continue;
    group.lr_scale /= n;
    group.eps /= n;
  }
  return spec;
}

}  // namespace gradsync
