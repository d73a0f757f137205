// Addresses "host:port": how they are written, and who listens there.

#ifndef GRADSYNC_CORE_BASE_HOST_PORT_H_
#define GRADSYNC_CORE_BASE_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // 0..65535; 0 means any, where one listens
};

// Reads "host:port", "1.2.3.4:port" or "[1::2]:port". Nothing is looked up.
// Errors: INVALID_ARGUMENT, with what was expected and found.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The opposite, with brackets around a host that has colons.
std::string FormatHostPort(absl::string_view host, int port);

// Whether the kernel at `address`, "node7:4000" or "[fe80::1]:4000", takes a TCP connection for whoever
// listens there, at any address that a name leads to; the connection is closed at once. Listening
// processes that do not run, or have no descriptors left, do not keep their kernel from taking it.
// False: no answer within `patience`, a refusal, a name that is nobody's, or this process cannot open a
// socket. Waits for `patience` at most, once a name has been looked up. Thread-safe.
bool HostAccepts(const std::string& address, absl::Duration patience);

// Which process of this host, as far as this process may see, listens for TCP connections at the
// port: "process 1234 (worker)", or "a process of user 1000" where /proc shows no more; "" where
// no process is seen to listen. For messages: by the time that it returns another process may. Thread-safe.
std::string PortOwner(int port);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_HOST_PORT_H_
