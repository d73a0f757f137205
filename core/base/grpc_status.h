// Conversions between absl::Status, which this code base uses, and grpc::Status, which the wire
// uses.
#ifndef GRADSYNC_CORE_BASE_GRPC_STATUS_H_
#define GRADSYNC_CORE_BASE_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace gradsync {

// The two sets of codes are the same numbers with the same names, so code and message survive a
// round trip. Payloads of an absl::Status and error_details of a grpc::Status are dropped. A code
// outside 0..16 (a newer or a broken peer) becomes UNKNOWN. Thread-safe.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status ToAbslStatus(const grpc::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_GRPC_STATUS_H_
