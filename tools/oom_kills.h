// What the kernel counts of processes that it has killed because memory had run out.

#ifndef GRADSYNC_TOOLS_OOM_KILLS_H_
#define GRADSYNC_TOOLS_OOM_KILLS_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace gradsync {

// Unset where the kernel does not say.
struct OomKills {
  absl::optional<int64_t> group;  // in the control group of this process, with those below it
  absl::optional<int64_t> host;   // anywhere
};

// Reads /proc/self/cgroup, the group's memory.events (memory.oom_control under version 1), and
// /proc/vmstat, all below `root`. Thread-safe.
OomKills ReadOomKills(const std::string& root = "");

// Whether this process and those that it starts may only use so much time of processors (ulimit -t),
// beyond which the kernel kills them. Thread-safe.
bool HasTimeLimit();

// What is to be said of a process that a SIGKILL of somebody else has ended, after "killed by signal
// 9 (SIGKILL)": whether the kernel has killed for want of memory between `before` and `now`,
// and whether it may have for a limit of time.
std::string ExplainForeignKill(const OomKills& before, const OomKills& now, bool time_limit);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_OOM_KILLS_H_
