#include "core/group/process_trace.h"

#include <unistd.h>

#include <climits>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"

namespace gradsync {
namespace {

int64_t Nanoseconds(MonotonicTime time) { return absl::ToInt64Nanoseconds(time.since_origin()); }

}  // namespace

std::string ClockName() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[PATH_MAX];
  const ssize_t length = readlink("/proc/self/ns/time", space, sizeof(space));
  if (boot.empty()) return absl::StrCat("process ", getpid(), " at ", ClockNow());
  return absl::StrCat(boot, " ", absl::string_view(space, length < 0 ? 0 : length));
}

int64_t ClockNow() { return Nanoseconds(MonotonicTime::Now()); }

void AddEvent(const TraceEvent& event, proto::ProcessTrace* trace) {
  trace->add_what(static_cast<int>(event.what));
  trace->add_way(static_cast<int>(event.way));
  trace->add_bucket(event.bucket);
  trace->add_slot(event.slot);
  trace->add_peer(event.peer);
  trace->add_step(event.step);
  trace->add_begin_ns(Nanoseconds(event.begin));
  trace->add_length_ns(absl::ToInt64Nanoseconds(event.end - event.begin));
  trace->add_bytes(event.bytes);
}

proto::ProcessTrace TakeTrace(TraceRecorder* recorder, int process, bool server, int index) {
  proto::ProcessTrace trace;
  trace.set_name(absl::StrCat(server ? "server " : "worker ", index));
  trace.set_process(process);
  trace.set_server(server);
  trace.set_clock(ClockName());
  trace.set_now_ns(ClockNow());
  trace.set_dropped(recorder->dropped());
  for (const TraceEvent& event : recorder->Take()) AddEvent(event, &trace);
  return trace;
}

}  // namespace gradsync
