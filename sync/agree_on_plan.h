#ifndef GRADSYNC_SYNC_AGREE_ON_PLAN_H_
#define GRADSYNC_SYNC_AGREE_ON_PLAN_H_

#include "absl/status/status.h"
#include "base/deadline.h"
#include "plan/plan.h"
#include "sync/side_channel.h"

namespace gradsync {

// Collective: compares every rank's plan with rank 0's. All ranks return the same code.
// Errors: FAILED_PRECONDITION with the first rank that differs, both fingerprints and the first
// line of difference; those of the side channel.
absl::Status AgreeOnPlan(SideChannel& side_channel, const Plan& plan, Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_AGREE_ON_PLAN_H_
