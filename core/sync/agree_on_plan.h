#ifndef GRADSYNC_CORE_SYNC_AGREE_ON_PLAN_H_
#define GRADSYNC_CORE_SYNC_AGREE_ON_PLAN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/plan/plan.h"

namespace gradsync {

// Collective: compares every rank's plan with rank 0's. All ranks return the same code.
// Errors: FAILED_PRECONDITION with the first rank that differs, both fingerprints and the first
// line of difference; those of the side channel.
absl::Status AgreeOnPlan(SideChannel& side_channel, const Plan& plan, Deadline deadline);

// Collective: compares every rank's `options`, words that follow "rank 0 has ", with rank 0's.
// `name` begins the message. All ranks return the same code. Errors: FAILED_PRECONDITION with the
// first rank that differs and what both have; those of the side channel.
absl::Status AgreeOnOptions(SideChannel& side_channel, absl::string_view name,
                            absl::string_view options, Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_AGREE_ON_PLAN_H_
