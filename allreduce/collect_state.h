#ifndef GRADSYNC_ALLREDUCE_COLLECT_STATE_H_
#define GRADSYNC_ALLREDUCE_COLLECT_STATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "allreduce/ring_owner.h"
#include "base/deadline.h"
#include "optim/optimizer_state.h"
#include "plan/plan.h"
#include "sync/side_channel.h"

namespace gradsync {

// Collective, under kOwner and while nothing is launched: the optimizer's state after `steps`
// steps, whole on every rank, from what each rank's `owner` has of it. Blocks until all have come
// or `deadline`.
// Errors: those of the side channel; DATA_LOSS when a rank's part has another length than the
// plan's.
absl::StatusOr<OptimizerState> CollectState(const Plan& plan, const RingOwner& owner, int64_t steps,
                                            SideChannel& side_channel, Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_COLLECT_STATE_H_
