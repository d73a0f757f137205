#include "core/base/launcher_process.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

// Empty where it cannot be read.
std::string Read(int pid, absl::string_view file) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/", file), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Fields of /proc/PID/stat behind the program's name, which may hold spaces: the parent is at 1, the
// start time at 19.
std::vector<std::string> Stat(int pid) {
  const std::string text = Read(pid, "stat");
  const size_t name_end = text.rfind(") ");
  if (name_end == text.npos) return {};
  std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  if (fields.size() < 20) fields.clear();
  return fields;
}

bool HasVariable(int pid, absl::string_view name) {
  const std::string text = Read(pid, "environ");
  const std::vector<absl::string_view> variables = absl::StrSplit(text, '\0');
  const std::string prefix = absl::StrCat(name, "=");
  return std::any_of(variables.begin(), variables.end(),
                     [&](absl::string_view each) { return absl::StartsWith(each, prefix); });
}

std::string ControlPort(int pid) {
  const std::string text = Read(pid, "cmdline");
  const std::vector<std::string> words = absl::StrSplit(text, '\0');
  const auto found = std::find(words.begin(), words.end(), "--control-port");
  return found == words.end() || found + 1 == words.end() ? "" : *(found + 1);
}

// A script of a user's that sets the mark for each rank is none.
bool IsMpiLauncher(int pid) {
  const std::string name = Read(pid, "comm");
  return absl::StartsWith(name, "mpiexec") || absl::StartsWith(name, "mpirun") ||
         absl::StartsWith(name, "hydra");
}

}  // namespace

std::string LauncherProcess(absl::string_view mark, bool on_one_host) {
  for (int pid = getppid(); pid > 0;) {
    // A launcher's proxy may have the mark itself, from a step of Slurm's that all was started in.
    const std::string port = ControlPort(pid);
    if (!port.empty()) return port;
    const std::vector<std::string> stat = Stat(pid);
    if (stat.empty()) return "";
    if (!HasVariable(pid, mark)) {
      return on_one_host && IsMpiLauncher(pid) ? absl::StrCat(pid, ".", stat[19]) : "";
    }
    if (!absl::SimpleAtoi(stat[1], &pid)) return "";
  }
  return "";
}

}  // namespace gradsync
