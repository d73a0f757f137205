#include "worker/failure_flags.h"

#include "absl/flags/flag.h"
#include "core/base/errors.h"

ABSL_FLAG(
    absl::Duration, failure_timeout, absl::Seconds(10),
    "a process of the job that gives no sign of life for longer is lost, and one that works but "
    "gets nothing done for longer is stuck, which ends the job; at most half of --timeout counts; "
    "inf: nobody is watched");

namespace gradsync {

absl::StatusOr<absl::Duration> FailureTimeoutFromFlags() {
  const absl::Duration timeout = absl::GetFlag(FLAGS_failure_timeout);
  if (timeout < absl::Milliseconds(100)) {
    return FlagError("failure_timeout", "at least 100ms", absl::FormatDuration(timeout));
  }
  return timeout;
}

}  // namespace gradsync
