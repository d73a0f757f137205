#include "base/host_accepts.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "base/deadline.h"
#include "base/host_port.h"

namespace gradsync {
namespace {

// Once poll() has said that it is no longer under way.
bool Connected(int descriptor) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

bool AwaitConnection(int descriptor, absl::Duration patience) {
  const Deadline deadline = Deadline::In(patience);
  for (;;) {
    pollfd wanted = {descriptor, POLLOUT, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline.remaining());
    const int ready = poll(&wanted, 1, static_cast<int>(left));
    if (ready > 0) return Connected(descriptor);
    if (ready == 0 || errno != EINTR) return false;
  }
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
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> place(found, &freeaddrinfo);
  const int descriptor = socket(place->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  bool connected = connect(descriptor, place->ai_addr, place->ai_addrlen) == 0;
  if (!connected && errno == EINPROGRESS) connected = AwaitConnection(descriptor, patience);
  close(descriptor);
  return connected;
}

}  // namespace gradsync
