#ifndef GRADSYNC_BASE_PROBE_HOST_H_
#define GRADSYNC_BASE_PROBE_HOST_H_

#include <string>

#include "absl/time/time.h"

namespace gradsync {

enum class HostAnswer {
  kAccepts,        // the kernel there has taken a connection for whoever listens
  kNothing,        // no answer within the patience, a refusal, or a name that is nobody's
  kNoDescriptors,  // this process cannot open a socket
};

// What becomes of a TCP connection to `address`, "node7:4000" or "[fe80::1]:4000", which is closed at
// once. Listening processes that do not run, or have no descriptors left, do not keep their
// kernel from taking it. Waits for `patience` at most, once a
// name has been looked up. Thread-safe.
HostAnswer ProbeHost(const std::string& address, absl::Duration patience);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_PROBE_HOST_H_
