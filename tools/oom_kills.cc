#include "tools/oom_kills.h"

#include <sys/resource.h>

#include <fstream>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

// The value of the line "oom_kill N".
absl::optional<int64_t> ReadCounter(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t count = 0;
    if (words.size() == 2 && words[0] == "oom_kill" && absl::SimpleAtoi(words[1], &count)) {
      return count;
    }
  }
  return absl::nullopt;
}

// In a container the group that /proc names may be mounted as the root.
absl::optional<int64_t> ReadGroupCounter(const std::string& folder, const std::string& group,
                                         const std::string& file) {
  const absl::optional<int64_t> count = ReadCounter(absl::StrCat(folder, group, "/", file));
  return count.has_value() ? count : ReadCounter(absl::StrCat(folder, "/", file));
}

bool Rose(const absl::optional<int64_t>& before, const absl::optional<int64_t>& now) {
  return before.has_value() && now.has_value() && *now > *before;
}

}  // namespace

OomKills ReadOomKills(const std::string& root) {
  OomKills kills;
  kills.host = ReadCounter(root + "/proc/vmstat");
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;  // "0::/a", or, under version 1, "4:memory:/a"
  while (std::getline(groups, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || kills.group.has_value()) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      kills.group = ReadGroupCounter(root + "/sys/fs/cgroup", parts[2], "memory.events");
    } else if (absl::c_linear_search(controllers, "memory")) {
      kills.group =
          ReadGroupCounter(root + "/sys/fs/cgroup/memory", parts[2], "memory.oom_control");
    }
  }
  return kills;
}

bool HasTimeLimit() {
  rlimit time = {};
  return getrlimit(RLIMIT_CPU, &time) == 0 && time.rlim_max != RLIM_INFINITY;
}

std::string ExplainForeignKill(const OomKills& before, const OomKills& now, bool time_limit) {
  if (Rose(before.group, now.group)) {
    return "by the kernel, as it seems: the memory limit of the control group was reached, and the "
           "kernel has killed a process in it meanwhile (oom_kill)";
  }
  if (Rose(before.host, now.host)) {
    return "by the kernel, as it seems: memory ran out on this host, and the kernel has killed a "
           "process meanwhile (oom_kill in /proc/vmstat)";
  }
  if (before.host.has_value() && now.host.has_value()) {
    return absl::StrCat("by another process",
                        time_limit ? " or for a limit such as ulimit -t, which is set" : "",
                        ": the kernel has killed none meanwhile for want of memory");
  }
  return absl::StrCat("not by the program that started it: by the kernel if memory ran out",
                      time_limit ? " or for a limit such as ulimit -t, which is set" : "",
                      ", or by another process");
}

}  // namespace gradsync
