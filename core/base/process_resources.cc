#include "core/base/process_resources.h"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"

namespace gradsync {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;

// A control group as its files show it.
struct ControlGroup {
  std::string folder;  // of its files
  std::string name;    // "/a/b", as this process sees it
};

std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

absl::optional<uint64_t> Number(absl::string_view text) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) return absl::nullopt;  // such as "max"
  return number;
}

// The number behind `name` in a file of lines "name number".
uint64_t NumberOf(const std::string& path, absl::string_view name) {
  std::ifstream file(path);
  std::string found;
  uint64_t number = 0;
  while (file >> found >> number) {
    if (found == name) return number;
  }
  return 0;
}

// The path of this process's group in the hierarchy of `controller`; that of version 2 for "".
absl::optional<std::string> GroupPath(const std::string& root, absl::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "4:cpu,cpuacct:/a/b"; "0::/a/b" in version 2.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    for (absl::string_view each : absl::StrSplit(fields[1], ',')) {
      if (each == controller) return fields[2];
    }
  }
  return absl::nullopt;
}

// The groups of this process in one hierarchy, from its own to the outermost that it can see. A
// container sees a part of the hierarchy: what is mounted is then the container's own group or one
// around it, and the path may be that on the host.
std::vector<ControlGroup> Groups(const std::string& root, absl::string_view controller) {
  const absl::optional<std::string> path = GroupPath(root, controller);
  if (!path.has_value()) return {};
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // "36 35 0:30 /root /mount/point options - type source super_options"
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> mount = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> kind = absl::StrSplit(halves[1], ' ');
    if (mount.size() < 5 || kind.size() < 3) continue;
    if (kind[0] != (controller.empty() ? "cgroup2" : "cgroup")) continue;
    const std::vector<std::string> controllers = absl::StrSplit(kind[2], ',');
    if (!controller.empty() &&
        std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
      continue;
    }
    absl::string_view below = *path;
    if (mount[3] != "/" && !absl::ConsumePrefix(&below, mount[3])) below = "";
    if (!absl::StartsWith(below, "/")) below = "";  // "/ab" is not below "/a"
    below = absl::StripSuffix(below, "/");
    std::vector<ControlGroup> groups;
    while (true) {
      groups.push_back({absl::StrCat(root, mount[4], below),
                        below.empty() ? std::string("/") : std::string(below)});
      if (below.empty()) return groups;
      below = below.substr(0, below.rfind('/'));
    }
  }
  return {};
}

// What is left below one group's limit; nothing where it has none.
absl::optional<uint64_t> MemoryLeft(const ControlGroup& group, bool version_2) {
  const auto file = [&](const char* name) { return absl::StrCat(group.folder, "/", name); };
  const absl::optional<uint64_t> limit =
      Number(Text(file(version_2 ? "memory.max" : "memory.limit_in_bytes")));
  // Version 1 has a number for "none", which depends on the size of a page.
  if (!limit.has_value() || *limit > uint64_t{1} << 60) return absl::nullopt;
  const uint64_t used =
      Number(Text(file(version_2 ? "memory.current" : "memory.usage_in_bytes"))).value_or(0);
  const std::string statistics = file("memory.stat");
  const std::string total = version_2 ? "" : "total_";
  const uint64_t cached =
      NumberOf(statistics, total + "inactive_file") + NumberOf(statistics, total + "active_file");
  const uint64_t taken = used - std::min(used, cached);
  return *limit - std::min(*limit, taken);
}

uint64_t HostMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  uint64_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// The cores that a group's quota is worth; nothing where it has none.
absl::optional<double> CoresOf(const ControlGroup& group, bool version_2) {
  absl::optional<uint64_t> quota;
  absl::optional<uint64_t> period;
  if (version_2) {
    std::istringstream both(Text(group.folder + "/cpu.max"));  // "200000 100000", "max 100000"
    std::string first;
    std::string second;
    both >> first >> second;
    quota = Number(first);
    period = Number(second);
  } else {
    quota = Number(Text(group.folder + "/cpu.cfs_quota_us"));  // "-1": none
    period = Number(Text(group.folder + "/cpu.cfs_period_us"));
  }
  if (quota.value_or(0) == 0 || period.value_or(0) == 0) return absl::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

absl::Status CheckLimit(absl::string_view what, uint64_t bytes, const MemoryLimit& limit) {
  if (bytes <= limit.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: expected %d bytes of memory (%.2f GB), found %d (%.2f GB), which is all "
                      "that %s leaves",
                      what, bytes, 1e-9 * static_cast<double>(bytes), limit.bytes,
                      1e-9 * static_cast<double>(limit.bytes), limit.source));
}

}  // namespace

MemoryLimit AvailableMemory(const std::string& root) {
  MemoryLimit least = {HostMemory(root), "the host"};
  for (const bool version_2 : {false, true}) {
    for (const ControlGroup& group : Groups(root, version_2 ? "" : "memory")) {
      const absl::optional<uint64_t> left = MemoryLeft(group, version_2);
      if (!left.has_value() || *left >= least.bytes) continue;
      least = {*left, absl::StrCat("the memory limit of control group ", group.name)};
    }
  }
  return least;
}

MemoryLimit AvailableAddresses() {
  rlimit most = {};
  MemoryLimit left = {std::numeric_limits<uint64_t>::max(), "the system"};
  if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return left;
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  const uint64_t taken = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  left.bytes = most.rlim_cur - std::min<uint64_t>(most.rlim_cur, taken);
  left.source = "the limit of this process's addresses (ulimit -v)";
  return left;
}

int HostCores(const std::string& root) {
  // Not bounded by the affinity mask, which glibc's count of processors does not look at.
  double cores = std::max(1u, std::thread::hardware_concurrency());
  for (const bool version_2 : {false, true}) {
    for (const ControlGroup& group : Groups(root, version_2 ? "" : "cpu")) {
      cores = std::min(cores, CoresOf(group, version_2).value_or(cores));
    }
  }
  return std::max(1, static_cast<int>(std::ceil(cores)));
}

int AvailableCores() {
  const int cores = HostCores();
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return cores;  // more than 1,024 cores
  return std::clamp(CPU_COUNT(&mask), 1, cores);
}

std::string ThreadLimits(const std::string& root) {
  std::vector<std::string> limits;
  rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    limits.push_back(absl::StrCat(
        space.rlim_cur, " bytes of addresses, in which their stacks must fit (ulimit -v)"));
  }
  for (const bool version_2 : {false, true}) {
    for (const ControlGroup& group : Groups(root, version_2 ? "" : "pids")) {
      const absl::optional<uint64_t> most = Number(Text(group.folder + "/pids.max"));
      if (!most.has_value()) continue;
      limits.push_back(absl::StrCat(*most, " of control group ", group.name, " (pids.max)"));
    }
  }
  rlimit user = {};
  if (getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY) {
    limits.push_back(absl::StrCat(user.rlim_cur, " of this user (ulimit -u)"));
  }
  const absl::optional<uint64_t> all = Number(Text(root + "/proc/sys/kernel/threads-max"));
  if (all.has_value()) limits.push_back(absl::StrCat(*all, " of the host (threads-max)"));
  return absl::StrJoin(limits, ", ");
}

absl::Status CheckMemory(absl::string_view what, uint64_t bytes) {
  return CheckLimit(what, bytes, AvailableMemory());
}

absl::Status CheckAddresses(absl::string_view what, uint64_t bytes) {
  return CheckLimit(what, bytes, AvailableAddresses());
}

absl::Status TakeMemory(absl::string_view what, char* memory, size_t bytes) {
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const absl::Status enough = CheckMemory(what, bytes - begin);
    if (!enough.ok()) {
      return begin == 0
                 ? enough
                 : absl::ResourceExhaustedError(absl::StrCat(enough.message(), ", after ", begin,
                                                             " of ", bytes, " bytes were taken"));
    }
    std::memset(memory + begin, 0, std::min(kPieceBytes, bytes - begin));
  }
  return absl::OkStatus();
}

void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool HasFreeDescriptor() {
  const int found = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (found < 0) return errno != EMFILE && errno != ENFILE;
  close(found);
  return true;
}

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap, too
  mallopt(M_TRIM_THRESHOLD, -1);  // whose end is never given back
#endif
}

}  // namespace gradsync
