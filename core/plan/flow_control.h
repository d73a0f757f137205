// How many chunks may be under way. Backends and the simulator read the same numbers.

#ifndef GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_
#define GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_

namespace gradsync {

// Tokens that a rank of a ring has initiated and not got back.
constexpr int kRingLead = 8;

// Chunks that a worker may push on each stream ahead of a stripe's results (push_lead.h). More let
// workers get further out of step (docs/grpc_link.md); fewer leave streams without chunks.
constexpr int kPsLead = 2;

// Folded chunks for which a server returns credit in one message: half of the credit.
inline int CreditBatch(int credit) { return credit > 1 ? credit / 2 : 1; }

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_FLOW_CONTROL_H_
