#ifndef GRADSYNC_WORKER_SEEING_FLAGS_H_
#define GRADSYNC_WORKER_SEEING_FLAGS_H_

#include "absl/status/statusor.h"
#include "gradsync/join/agree_on_flags.h"
#include "worker/seeing_options.h"

namespace gradsync {

// What --trace, --trace_steps, --trace_bandwidth, --trace_placement and --tensorboard say. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<SeeingOptions> SeeingFromFlags(int rank);

// Whether --trace is Kineto's, which each rank has for itself; else all must have the same, because
// rank 0 writes the trace of all.
bool TracesEachRank();

// The trace's flags, for the comparison of ranks; empty where each rank has its own, or none.
void AddTraceFlags(FlagTexts* flags);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SEEING_FLAGS_H_
