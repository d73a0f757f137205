// Between the optimizer's state by parameter name and its pieces by bucket range, as owners hold
// them.

#ifndef GRADSYNC_CORE_OPTIM_STATE_MAPPING_H_
#define GRADSYNC_CORE_OPTIM_STATE_MAPPING_H_

#include <string>

#include "absl/status/status.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"

namespace gradsync {

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

#endif  // GRADSYNC_CORE_OPTIM_STATE_MAPPING_H_
