#ifndef GRADSYNC_CORE_GROUP_PROCESS_TRACE_H_
#define GRADSYNC_CORE_GROUP_PROCESS_TRACE_H_

#include <cstdint>
#include <string>

#include "core/base/trace_recorder.h"
#include "proto/step_trace.pb.h"

namespace gradsync {

// What two processes have in common that read the same CLOCK_MONOTONIC: boot and time namespace.
// Different where the kernel does not say. Thread-safe.
std::string ClockName();

// CLOCK_MONOTONIC (core/base/monotonic_time.h), nanoseconds.
int64_t ClockNow();

// Adds one event at the end.
void AddEvent(const TraceEvent& event, proto::ProcessTrace* trace);

// Takes all events of `recorder` for the message by which another process gets them; name, number
// and clock are filled in. Thread-safe.
proto::ProcessTrace TakeTrace(TraceRecorder* recorder, int process, bool server, int index);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_PROCESS_TRACE_H_
