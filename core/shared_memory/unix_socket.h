#ifndef GRADSYNC_CORE_SHARED_MEMORY_UNIX_SOCKET_H_
#define GRADSYNC_CORE_SHARED_MEMORY_UNIX_SOCKET_H_

#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"

namespace gradsync {

// Owns an open file descriptor and closes it. Movable; thread-compatible.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Unix sockets between processes of one host that run as one user, with names that vanish with
// their listener (Linux's abstract namespace, one per network namespace). For passing file
// descriptors, and for noticing that a process has ended.

struct UnixMessage {
  std::string bytes;  // empty at the end of the connection
  FileDescriptor file;
};

// A connection that keeps message boundaries. Thread-compatible. Blocking calls end early with
// CANCELLED when `cancel`, a file descriptor, becomes readable; -1 for none. Errors, here and
// below, also: RESOURCE_EXHAUSTED when this process has no file descriptors left.
class UnixSocket {
 public:
  UnixSocket() = default;

  // To the listener named `name`, which must be a process of `user`. Errors: UNAVAILABLE when
  // nobody listens there; PERMISSION_DENIED when another user does, naming both users.
  static absl::StatusOr<UnixSocket> Connect(absl::string_view name, uid_t user = geteuid());

  // Sends at most 4 KiB, and a file unless it is -1. Never blocks for long: what does not fit the
  // socket's buffer is an error. Errors: UNAVAILABLE.
  absl::Status Send(absl::string_view bytes, int file = -1) const;

  // Errors: DEADLINE_EXCEEDED; UNAVAILABLE; CANCELLED.
  absl::StatusOr<UnixMessage> Receive(Deadline deadline, int cancel = -1) const;

  int file() const { return file_.get(); }
  // Of the process at the other end when it connected or listened.
  pid_t peer_pid() const { return peer_pid_; }

 private:
  friend class UnixListener;
  static absl::StatusOr<UnixSocket> FromConnected(FileDescriptor file, uid_t user);

  FileDescriptor file_;
  pid_t peer_pid_ = 0;
};

// Thread-compatible. Leaves nothing in the file system.
class UnixListener {
 public:
  UnixListener() = default;

  // Under a name that nobody can guess. Errors: UNAVAILABLE.
  static absl::StatusOr<UnixListener> Listen();

  // For Connect() in processes of the same network namespace. Printable.
  const std::string& name() const { return name_; }

  // The next connection of a process of this user; those of other users are closed and passed over.
  // Errors: DEADLINE_EXCEEDED; UNAVAILABLE; CANCELLED.
  absl::StatusOr<UnixSocket> Accept(Deadline deadline, int cancel = -1) const;

 private:
  FileDescriptor file_;
  std::string name_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_UNIX_SOCKET_H_
