#include "core/base/host_accepts.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "core/base/deadline.h"
#include "core/base/host_port.h"

namespace gradsync {
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

}  // namespace gradsync
