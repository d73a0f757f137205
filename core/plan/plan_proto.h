// The plan as a message, for servers, which have no parameters of their own to build it from.

#ifndef GRADSYNC_CORE_PLAN_PLAN_PROTO_H_
#define GRADSYNC_CORE_PLAN_PLAN_PROTO_H_

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "proto/plan.pb.h"

namespace gradsync {

// PlanFromProto(PlanToProto(plan)) has the same Describe() and fingerprint().
proto::Plan PlanToProto(const Plan& plan);

// Checks everything, so that the message may come from anybody: sizes whose product overflows,
// indices out of range and cuts into absurdly many chunks are refused before anything of that size
// is allocated. Errors: INVALID_ARGUMENT naming the field, what was expected and what came.
absl::StatusOr<Plan> PlanFromProto(const proto::Plan& message);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PLAN_PROTO_H_
