// absl::Status and Deadline, which this code base uses, as gRPC has them.

#ifndef GRADSYNC_CORE_BASE_GRPC_CONVERSIONS_H_
#define GRADSYNC_CORE_BASE_GRPC_CONVERSIONS_H_

#include <grpc/support/time.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "grpcpp/support/status.h"

namespace gradsync {

// The two sets of codes are the same numbers with the same names, so code and message survive a
// round trip. Payloads of an absl::Status and error_details of a grpc::Status are dropped. A code
// outside 0..16 (a newer or a broken peer) becomes UNKNOWN. Thread-safe.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status ToAbslStatus(const grpc::Status& status);

// A deadline of gRPC's calls, by gRPC's own monotonic clock. They also take times of the wall clock,
// and those move with it until gRPC has converted them; so do its timers (see alarm_clock.h). To be
// made at the call and used at once.
inline gpr_timespec GrpcDeadline(Deadline deadline) {
  if (deadline.never()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(
      gpr_now(GPR_CLOCK_MONOTONIC),
      gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline.remaining()), GPR_TIMESPAN));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_GRPC_CONVERSIONS_H_
