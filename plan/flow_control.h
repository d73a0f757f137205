// How many chunks may be under way. Backends and the simulator read the same numbers.

#ifndef GRADSYNC_PLAN_FLOW_CONTROL_H_
#define GRADSYNC_PLAN_FLOW_CONTROL_H_

namespace gradsync {

// Tokens that a rank of a ring has initiated and not got back.
constexpr int kRingWindow = 8;

// Chunks that a worker has on their way to one server, without credit for them. More keep no link
// busier, and let workers and servers get out of step (docs/grpc_link.md).
constexpr int kPsCredit = 4;

}  // namespace gradsync

#endif  // GRADSYNC_PLAN_FLOW_CONTROL_H_
