#include "optim/range_optimizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/kernels.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

absl::Status CheckSegments(const std::vector<GroupSegment>& segments, int64_t size, size_t groups) {
  int64_t previous_end = 0;
  for (const GroupSegment& s : segments) {
    if (s.begin < previous_end || s.end < s.begin || s.end > size) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer segment [", s.begin, ", ", s.end,
                                                     "): expected it inside [", previous_end, ", ",
                                                     size, "), after the segment before"));
    }
    if (s.group < 0 || static_cast<size_t>(s.group) >= groups) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer segment [", s.begin, ", ", s.end,
                                                     "): expected one of ", groups,
                                                     " groups, found group ", s.group));
    }
    previous_end = s.end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RangeOptimizer> RangeOptimizer::Create(std::shared_ptr<const OptimizerSpec> spec,
                                                      int64_t size,
                                                      std::vector<GroupSegment> segments) {
  if (spec == nullptr)
    return absl::InvalidArgumentError("optimizer spec: expected one, found null");
  if (size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer range: expected a size of at least 0, found ", size));
  }
  GS_RETURN_IF_ERROR(spec->Validate());
  GS_RETURN_IF_ERROR(CheckSegments(segments, size, spec->groups.size()));
  return RangeOptimizer(std::move(spec), size, std::move(segments));
}

RangeOptimizer::RangeOptimizer(std::shared_ptr<const OptimizerSpec> spec, int64_t size,
                               std::vector<GroupSegment> segments)
    : spec_(std::move(spec)),
      size_(size),
      segments_(std::move(segments)),
      slot_names_(SlotNames(*spec_)),
      slots_(slot_names_.size()) {}

void RangeOptimizer::Apply(float* param, const float* grad, double lr, int64_t step) {
  const bool first_step = !has_state_;
  EnsureState();
  for (const GroupSegment& s : segments_) {
    const OptimizerGroup& group = spec_->groups[s.group];
    const double group_lr = lr * group.lr_scale;
    const size_t n = static_cast<size_t>(s.end - s.begin);
    float* const p = param + s.begin;
    const float* const g = grad + s.begin;
    if (spec_->kind == OptimizerKind::kSgd) {
      float* const buffer = slots_.empty() ? nullptr : slots_[0].data() + s.begin;
      SgdStep(MakeSgdCoefficients(group_lr, group.momentum, group.dampening, group.weight_decay,
                                  group.nesterov, first_step),
              p, g, buffer, n);
    } else {
      const AdamDecay decay = spec_->kind == OptimizerKind::kAdamW ? AdamDecay::kDecoupled
                                                                   : AdamDecay::kAddedToGradient;
      AdamStep(MakeAdamCoefficients(group_lr, group.beta1, group.beta2, group.eps,
                                    group.weight_decay, decay, step),
               p, g, slots_[0].data() + s.begin, slots_[1].data() + s.begin, n);
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

}  // namespace gradsync
