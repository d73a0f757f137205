#ifndef GRADSYNC_WORKER_GATHER_TRACE_H_
#define GRADSYNC_WORKER_GATHER_TRACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/worker_group.h"
#include "proto/step_trace.pb.h"

namespace gradsync {

// Collective, of all ranks of a group with a recorder: brings what all have recorded, and what rank
// 0 was told by servers, to rank 0, on its clock. A rank whose clock is another one (`clock`,
// ClockName() but in tests) asks rank 0 for the time some times, by way of the store; the question
// that was answered soonest counts, and half of the time that it took bounds the error. Returns the
// traces by process on rank 0, nothing on the others. Blocks until all ranks have come, or until
// `deadline`. Errors: those of the store; DATA_LOSS for what is no trace.
absl::StatusOr<std::vector<proto::ProcessTrace>> GatherTraces(const WorkerGroup& group,
                                                              const std::string& clock,
                                                              Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_GATHER_TRACE_H_
