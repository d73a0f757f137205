#ifndef GRADSYNC_CORE_BASE_GRPC_DEADLINE_H_
#define GRADSYNC_CORE_BASE_GRPC_DEADLINE_H_

#include <grpc/support/time.h>

#include "absl/time/time.h"
#include "core/base/deadline.h"

namespace gradsync {

// The same for gRPC's calls, by gRPC's own monotonic clock. They also take times of the wall clock,
// and those move with it until gRPC has converted them; so do its timers (see alarm_clock.h). To be
// made at the call and used at once.
inline gpr_timespec GrpcDeadline(Deadline deadline) {
  if (deadline.never()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(
      gpr_now(GPR_CLOCK_MONOTONIC),
      gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline.remaining()), GPR_TIMESPAN));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_GRPC_DEADLINE_H_
