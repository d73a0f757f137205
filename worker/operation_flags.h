// The flags of who runs jobs and watches them (docs/operations.md).

#ifndef GRADSYNC_WORKER_OPERATION_FLAGS_H_
#define GRADSYNC_WORKER_OPERATION_FLAGS_H_

#include "absl/status/statusor.h"
#include "core/base/log_line.h"
#include "worker/live_metrics.h"

namespace gradsync {

struct OperationOptions {
  LiveMetricsOptions metrics;
  LogFormat log_format = LogFormat::kText;
  bool reflection = false;
};

// What the flags say, for the worker `rank`, which is number `local_rank` on its host; -1 where
// that is not known. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<OperationOptions> OperationsFromFlags(int rank, int local_rank);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_OPERATION_FLAGS_H_
