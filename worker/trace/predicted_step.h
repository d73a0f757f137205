// The simulator's picture of a step that was recorded, to be seen beside it.

#ifndef GRADSYNC_WORKER_TRACE_PREDICTED_STEP_H_
#define GRADSYNC_WORKER_TRACE_PREDICTED_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "proto/step_trace.pb.h"
#include "simulator/cluster.h"

namespace gradsync {

// Simulates `step` of the processes in `measured`, rank 0 first: with their own forward and
// backward, rank 0's ready times and its update, or the owners', on a cluster that the caller
// describes but for the workers' slowness. Returns processes "predicted: worker 0" and so on, whose
// step begins where rank 0's forward does. Thread-safe; blocks only to compute.
// Errors: INVALID_ARGUMENT for a step that rank 0 has not recorded whole; those of
// SimulateStepInFull().
absl::StatusOr<std::vector<proto::ProcessTrace>> PredictStep(
    const Plan& plan, Cluster cluster, const std::vector<proto::ProcessTrace>& measured,
    int64_t step);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_PREDICTED_STEP_H_
