// One picture of a window of steps, of all processes on one clock, for ui.perfetto.dev.

#ifndef GRADSYNC_WORKER_TRACE_PERFETTO_FILE_H_
#define GRADSYNC_WORKER_TRACE_PERFETTO_FILE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "proto/step_trace.pb.h"

namespace gradsync {

// The events of a trace that another process made: as many as its shortest column has.
inline int EventsOf(const proto::ProcessTrace& trace) {
  return std::min({trace.what_size(), trace.way_size(), trace.bucket_size(), trace.slot_size(),
                   trace.peer_size(), trace.step_size(), trace.begin_ns_size(),
                   trace.length_ns_size(), trace.bytes_size()});
}

// The content of a trace file (proto/perfetto_trace.proto). Each process has lanes:
//
//   steps      a slice for each step
//   compute    data, forward, backward, update: what is between them in a step is exposed
//   exposed    waits for buckets, which fill these gaps
//   ready      an instant for each bucket that is complete
//   buckets    from launch to resolution
//   to X       chunks, from the moment that the link has them until it has let them go
//   from X     the same chunks as they come. One begins when it was sent, or when the one before it
//              from X was here, for what else is on that way is not known; it ends when it is here
//   folds, updates, copies   of chunks
//
// Slices of a lane never overlap: where several things happen at once, a lane is drawn as many
// times as it takes. An arrow (flow) leads from a chunk's slice at its sender to that at its
// receiver. Times are rank 0's CLOCK_MONOTONIC; an instant "clock" at a process' begin says by how
// much its own was shifted, and how far that may be wrong.
//
// Pure; thread-safe.
std::string PerfettoFile(const std::vector<proto::ProcessTrace>& processes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_PERFETTO_FILE_H_
