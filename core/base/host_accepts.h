#ifndef GRADSYNC_CORE_BASE_HOST_ACCEPTS_H_
#define GRADSYNC_CORE_BASE_HOST_ACCEPTS_H_

#include <string>

#include "absl/time/time.h"

namespace gradsync {

// Whether the kernel at `address`, "node7:4000" or "[fe80::1]:4000", takes a TCP connection for whoever
// listens there, at any address that a name leads to; the connection is closed at once. Listening processes that do not run, or have no
// descriptors left, do not keep their kernel from taking it. False: no answer within `patience`, a
// refusal, a name that is nobody's, or this process cannot open a socket. Waits for `patience` at
// most, once a name has been looked up. Thread-safe.
bool HostAccepts(const std::string& address, absl::Duration patience);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_HOST_ACCEPTS_H_
