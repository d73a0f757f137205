#include "core/base/port_owner.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

struct Listeners {
  std::set<std::string> sockets;  // as /proc/PID/fd shows them: "socket:[4711]"
  std::string user;               // of one of them
};

// A line of /proc/net/tcp: number, local address, remote address, state, ..., user (7), timeout,
// inode (9).
void AddListeners(const char* table, int port, Listeners* listeners) {
  constexpr char kListens[] = "0A";
  std::ifstream file(table);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 10 || fields[3] != kListens) continue;
    const std::string digits = fields[1].substr(fields[1].find(':') + 1);
    uint32_t found = 0;
    if (!absl::SimpleHexAtoi(digits, &found) || static_cast<int>(found) != port) continue;
    listeners->sockets.insert(absl::StrCat("socket:[", fields[9], "]"));
    listeners->user = fields[7];
  }
}

bool HasOneOf(const std::filesystem::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (std::filesystem::directory_iterator each(process / "fd", error), end; !error && each != end;
       each.increment(error)) {
    std::error_code unreadable;
    if (sockets.count(std::filesystem::read_symlink(each->path(), unreadable)) > 0) return true;
  }
  return false;
}

}  // namespace

std::string PortOwner(int port) {
  Listeners listeners;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    AddListeners(table, port, &listeners);
  }
  if (listeners.sockets.empty()) return "";
  std::error_code error;
  for (std::filesystem::directory_iterator each("/proc", error), end; !error && each != end;
       each.increment(error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(each->path().filename().string(), &pid)) continue;
    if (!HasOneOf(each->path(), listeners.sockets)) continue;
    std::string name;
    std::getline(std::ifstream(each->path() / "comm"), name);
    return absl::StrCat("process ", pid, " (", name, ")");
  }
  return absl::StrCat("a process of user ", listeners.user);
}

}  // namespace gradsync
