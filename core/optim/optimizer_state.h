#ifndef GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_
#define GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"

namespace gradsync {

// The whole optimizer's state, free of buckets, chunks and owners, so that any backend can import
// what another exported.
struct OptimizerState {
  // Optimizer steps done so far; the next step is step + 1.
  int64_t step = 0;
  // Parameter name -> slot name as PyTorch has it ("momentum_buffer"; "exp_avg", "exp_avg_sq") ->
  // the slot's elements in the parameter's memory order, numel() of them. A parameter without state
  // yet is absent.
  std::map<std::string, std::map<std::string, std::vector<float>>> slots;
};

// Between the optimizer's state by parameter name and its pieces by bucket range, as owners hold
// them.

// Writes `data`, the elements `range` of bucket `bucket` of slot `slot`, to the parameters that lie
// there. Parameters that have no such slot in `state` yet get one, filled with zeros. Padding is
// skipped.
void ScatterSlot(const Plan& plan, int bucket, ElementRange range, const std::string& slot,
                 const float* data, OptimizerState* state);

// The other way: fills `data` with the elements `range` of `slot`; padding and parameters without
// state become zero. `state` must have passed CheckState().
void GatherSlot(const Plan& plan, int bucket, ElementRange range, const std::string& slot,
                const OptimizerState& state, float* data);

// Whether `state` has anything for the parameters in `range`. What has not is imported as without
// state, not as zeros (range_optimizer.h).
bool HasState(const Plan& plan, int bucket, ElementRange range, const OptimizerState& state);

// Errors: INVALID_ARGUMENT naming the first parameter or slot that the plan does not have, with
// sizes.
absl::Status CheckState(const Plan& plan, const OptimizerState& state);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_OPTIM_OPTIMIZER_STATE_H_
