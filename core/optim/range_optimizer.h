// Runs an optimizer over a contiguous range of floats: a chunk at its owner, a bucket at a worker.
//
// What happens to an element depends only on its own gradients, steps and group, never on where
// ranges are cut: parameters and state have the same bits whether a bucket is one range or many.

#ifndef GRADSYNC_CORE_OPTIM_RANGE_OPTIMIZER_H_
#define GRADSYNC_CORE_OPTIM_RANGE_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// Owns the state slots of its range (SGD: momentum_buffer; Adam, AdamW: exp_avg and exp_avg_sq, see
// SlotNames). Slots are allocated at the first Apply or at the first mutable_slot, so a range that
// is never updated costs nothing. Thread-compatible; distinct ranges may be used by distinct
// threads. Movable, not copyable.
class RangeOptimizer {
 public:
  // For the elements `range` of a bucket whose optimizer is `spec`; `groups` as Plan::GroupRanges()
  // gives them for that range. Elements in no group (padding) are never touched.
  RangeOptimizer(const OptimizerSpec& spec, ElementRange range, std::vector<GroupRange> groups);

  // What all ranges of a plan have alike, so that many small ones take no more memory than their own.
  struct Shared {
    explicit Shared(const OptimizerSpec& spec) : spec(spec), slot_names(SlotNames(spec)) {}

    const OptimizerSpec spec;
    const std::vector<std::string> slot_names;
  };
  RangeOptimizer(std::shared_ptr<const Shared> shared, ElementRange range,
                 std::vector<GroupRange> groups);

  RangeOptimizer(RangeOptimizer&&) = default;
  RangeOptimizer& operator=(RangeOptimizer&&) = default;

  // One step: reads size() gradients, updates size() parameters and the state; the pointers are to
  // the range's first element. The two do not overlap.
  //   lr    the step's learning rate; a group's is lr * lr_scale
  //   step  counts the optimizer's steps from 1 (Adam's bias correction), above that of the Apply
  //   before. After an import it goes on from the exporter's.
  // SGD's momentum starts as the gradient at the first Apply of a range without state, whatever
  // `step` says; a range whose state was imported is past that.
  void Apply(float* param, const float* grad, double lr, int64_t step);

  // Number of elements.
  int64_t size() const { return size_; }

  // The slots that the spec gives every range; their order is that of the indices below.
  const std::vector<std::string>& slot_names() const { return shared_->slot_names; }

  // Whether the slots hold something: after an Apply or a mutable_slot. A range without state must
  // be imported as one without state (by not importing it), not as zeros: with dampening they
  // differ.
  bool has_state() const { return has_state_; }

  // The values of slot `index` for export; empty before has_state(). In padding and in groups that
  // have no such slot (SGD without momentum) they are 0.
  absl::Span<const float> slot(int index) const { return slots_[index]; }

  // The values of slot `index` for import: the caller writes all of them, for every slot. Zero at
  // first.
  absl::Span<float> mutable_slot(int index);

  // Forgets the state, as if newly created.
  void ClearState();

 private:
  void EnsureState();

  std::shared_ptr<const Shared> shared_;
  int64_t size_;
  std::vector<GroupRange> groups_;  // counted from the range's first element
  std::vector<std::vector<float>> slots_;
  bool has_state_ = false;
};

// The optimizer of one of several updates that together make a step.
//
// For `parts` updates with a gradient times 1/parts each, in place of one with the mean of those
// gradients: `spec` with everything that does not scale with the gradient divided by `parts`. That
// is the weight decay that is added to the gradient (SGD, Adam), and the rate of Adam and AdamW,
// whose steps do not depend on the gradient's scale, together with eps, which does. The decay of
// momentum and of Adam's averages stays as it is, per update.
//
// With SGD without momentum and decay, `parts` such updates with gradients taken at the same
// parameters are one step of `spec` up to rounding; with momentum they move a parameter as far in
// the long run.
OptimizerSpec PartialUpdateSpec(OptimizerSpec spec, int parts);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_OPTIM_RANGE_OPTIMIZER_H_
