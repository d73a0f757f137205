#ifndef GRADSYNC_CORE_BASE_HOST_IDENTITY_H_
#define GRADSYNC_CORE_BASE_HOST_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace gradsync {

// Tells whether two processes can share memory and Unix sockets: they run under the same boot of
// one kernel, in the same network namespace, as one user. Host names are no such proof (containers repeat them)
// and serve for messages only. A value.
struct HostIdentity {
  std::string boot_id;             // of the kernel, new at each boot
  uint64_t network_namespace = 0;  // its inode
  uint64_t user = 0;               // as the user namespace around this process's counts them
  std::string hostname;

  // Equal for two processes exactly when they share the host and the user. Contains no spaces.
  std::string Key() const;
};

// Of this process. Thread-safe.
// Errors: UNAVAILABLE when the kernel does not say (no /proc), naming the file.
absl::StatusOr<HostIdentity> ReadHostIdentity();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_HOST_IDENTITY_H_
