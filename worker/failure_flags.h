// The flag by which a job notices that one of its processes is lost or stuck.

#ifndef GRADSYNC_WORKER_FAILURE_FLAGS_H_
#define GRADSYNC_WORKER_FAILURE_FLAGS_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gradsync {

// MeetOptions::failure_timeout. Errors: INVALID_ARGUMENT naming the flag, what was expected and
// what came.
absl::StatusOr<absl::Duration> FailureTimeoutFromFlags();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_FAILURE_FLAGS_H_
