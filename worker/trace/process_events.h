#ifndef GRADSYNC_WORKER_TRACE_PROCESS_EVENTS_H_
#define GRADSYNC_WORKER_TRACE_PROCESS_EVENTS_H_

#include <algorithm>

#include "proto/step_trace.pb.h"

namespace gradsync {

// The events of a trace that another process made: as many as its shortest column has.
inline int EventsOf(const proto::ProcessTrace& trace) {
  return std::min({trace.what_size(), trace.way_size(), trace.bucket_size(), trace.slot_size(),
                   trace.peer_size(), trace.step_size(), trace.begin_ns_size(),
                   trace.length_ns_size(), trace.bytes_size()});
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_PROCESS_EVENTS_H_
