#include "core/base/host_port.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/deadline.h"

namespace gradsync {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const absl::Status error = absl::InvalidArgumentError(
      absl::StrCat("expected an address host:port or [host]:port with a port in 0..65535, found \"",
                   text, "\""));
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return error;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of(bracketed ? "[]/, " : "[]:/, ") != host.npos) return error;
  HostPort result;
  result.host = std::string(host);
  // SimpleAtoi would take a sign and spaces.
  if (port.empty() || port.find_first_not_of("0123456789") != port.npos ||
      !absl::SimpleAtoi(port, &result.port) || result.port > 65535) {
    return error;
  }
  return result;
}

std::string FormatHostPort(absl::string_view host, int port) {
  const bool colons = host.find(':') != host.npos;
  return absl::StrCat(colons ? "[" : "", host, colons ? "]:" : ":", port);
}

namespace {

// Once poll() has said that it is no longer under way.
bool Connected(int descriptor) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

bool AwaitConnection(std::vector<pollfd>* pending, absl::Duration patience) {
  const Deadline deadline = Deadline::In(patience);
  while (!pending->empty()) {
    const int64_t left = absl::ToInt64Milliseconds(deadline.remaining());
    const int ready = poll(pending->data(), pending->size(), static_cast<int>(left));
    if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
    for (size_t i = 0; ready > 0 && i < pending->size();) {
      if ((*pending)[i].revents == 0) {
        ++i;
      } else if (Connected((*pending)[i].fd)) {
        return true;
      } else {
        close((*pending)[i].fd);
        pending->erase(pending->begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  return false;
}

}  // namespace

bool HostAccepts(const std::string& address, absl::Duration patience) {
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return false;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(parsed->port);
  if (getaddrinfo(parsed->host.c_str(), port.c_str(), &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> places(found, &freeaddrinfo);
  // A name may lead to several addresses, at one of which somebody listens: all are tried at once.
  std::vector<pollfd> pending;
  const auto close_all = absl::MakeCleanup([&pending] {
    for (const pollfd& each : pending) close(each.fd);
  });
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    const int descriptor = socket(place->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    pending.push_back({descriptor, POLLOUT, 0});
    if (connect(descriptor, place->ai_addr, place->ai_addrlen) == 0) return true;
    if (errno == EINPROGRESS) continue;
    close(descriptor);
    pending.pop_back();
  }
  return AwaitConnection(&pending, patience);
}

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
