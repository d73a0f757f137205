#include "core/gpu/device_range_optimizer.h"

#include <utility>

#include "core/base/kernels.h"
#include "core/base/status_macros.h"

namespace gradsync {

DeviceRangeOptimizer::DeviceRangeOptimizer(std::shared_ptr<GpuApi> gpu, const OptimizerSpec& spec,
                                           ElementRange range, std::vector<GroupRange> groups)
    : gpu_(std::move(gpu)),
      spec_(spec),
      size_(range.size()),
      groups_(std::move(groups)),
      slot_names_(SlotNames(spec_)) {
  for (GroupRange& group : groups_) {
    group.range = {group.range.begin - range.begin, group.range.end - range.begin};
  }
}

absl::Status DeviceRangeOptimizer::Apply(float* param, const float* grad, double lr, int64_t step,
                                         GpuStream stream) {
  const bool first_step = !has_state_;
  GS_RETURN_IF_ERROR(EnsureState());
  for (const GroupRange& g : groups_) {
    const OptimizerGroup& group = spec_.groups[g.group];
    const double group_lr = lr * group.lr_scale;
    const size_t n = static_cast<size_t>(g.range.size());
    const int64_t begin = g.range.begin;
    float* const p = param + begin;
    const float* const d = grad + begin;
    if (spec_.kind == OptimizerKind::kSgd) {
      float* const buffer = slots_.empty() ? nullptr : slots_[0]->floats() + begin;
      GS_RETURN_IF_ERROR(
          gpu_->SgdStep(MakeSgdCoefficients(group_lr, group.momentum, group.dampening,
                                            group.weight_decay, group.nesterov, first_step),
                        p, d, buffer, n, stream));
    } else {
      const AdamDecay decay =
          spec_.kind == OptimizerKind::kAdamW ? AdamDecay::kDecoupled : AdamDecay::kAddedToGradient;
      GS_RETURN_IF_ERROR(gpu_->AdamStep(
          MakeAdamCoefficients(group_lr, group.beta1, group.beta2, group.eps, group.weight_decay,
                               decay, step),
          p, d, slots_[0]->floats() + begin, slots_[1]->floats() + begin, n, stream));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceRangeOptimizer::EnsureState() {
  if (has_state_) return absl::OkStatus();
  std::vector<std::shared_ptr<GpuMemory>> slots;
  for (size_t slot = 0; slot < slot_names_.size(); ++slot) {
    GS_ASSIGN_OR_RETURN(slots.emplace_back(),
                        GpuMemory::OnDevice(gpu_, static_cast<size_t>(size_) * sizeof(float)));
  }
  slots_ = std::move(slots);
  has_state_ = true;
  return absl::OkStatus();
}

void DeviceRangeOptimizer::ClearState() {
  slots_.clear();
  has_state_ = false;
}

}  // namespace gradsync
