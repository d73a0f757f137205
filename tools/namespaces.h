// Linux namespaces without a name: they live as long as a descriptor or a process holds them, so
// nothing is left behind, whatever ends the program.

#ifndef GRADSYNC_TOOLS_NAMESPACES_H_
#define GRADSYNC_TOOLS_NAMESPACES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Descriptors of what a process may enter; a value that owns nothing. Closed by exec.
struct Namespaces {
  int user = -1;     // -1: stays in ours
  int network = -1;  // -1: stays in ours
};

// Makes the calling process, which must have one thread, a member. Async-signal-safe, for use
// between fork and exec. Returns 0 or the errno. Entering a user namespace clears PR_SET_PDEATHSIG.
int EnterNamespaces(const Namespaces& namespaces);

// Network namespaces with nothing but a loopback interface, all owned by one user namespace, in
// which our user is root, where the caller may not make network namespaces himself.
// Thread-compatible; movable, and empty after that.
class NetworkNamespaces {
 public:
  // Blocks for milliseconds. Errors: PERMISSION_DENIED when neither root's rights nor user
  // namespaces are to be had, with the way to get them; RESOURCE_EXHAUSTED or UNAVAILABLE when the
  // system has no more processes, descriptors or namespaces.
  static absl::StatusOr<NetworkNamespaces> Create(int count);

  NetworkNamespaces() = default;
  NetworkNamespaces(NetworkNamespaces&& other) noexcept;
  NetworkNamespaces& operator=(NetworkNamespaces&& other) noexcept;
  ~NetworkNamespaces();

  int size() const { return static_cast<int>(network_.size()); }
  Namespaces at(int index) const { return {user_, network_[index]}; }

 private:
  int user_ = -1;
  std::vector<int> network_;
};

// Writes `text` to `path` of /proc/sys/net as a process inside `namespaces` sees it.
// Errors: the errno's code, naming path and text.
absl::Status WriteSysctlInside(const Namespaces& namespaces, absl::string_view path,
                               absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_NAMESPACES_H_
