#include "core/shared_memory/unix_socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr size_t kMaxMessage = 4096;

// Why a call failed just now.
absl::Status Failed(absl::string_view what) {
  const int error = errno;
  const std::string text = absl::StrCat("unix socket: ", what, ": ", std::strerror(error));
  if (error != EMFILE && error != ENFILE) return absl::UnavailableError(text);
  return absl::ResourceExhaustedError(absl::StrCat(
      "no file descriptors left ", error == EMFILE ? "in this process: " : "on this host: ", text));
}

absl::StatusOr<FileDescriptor> NewSocket(int flags) {
  FileDescriptor file(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!file.valid()) return Failed("cannot create one");
  return file;
}

// An abstract name begins with a zero byte and ends where the length says.
socklen_t SetAddress(absl::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Waits until `file` is readable.
absl::Status AwaitReadable(int file, Deadline deadline, int cancel, absl::string_view what) {
  PatientDeadline patience(deadline);
  while (true) {
    pollfd fds[2] = {{file, POLLIN, 0}, {cancel, POLLIN, 0}};
    const int ready = poll(fds, 2, patience.next_look().PollTimeout());
    if (ready < 0 && errno != EINTR) return Failed("poll");
    if (ready > 0 && fds[1].revents != 0) return absl::CancelledError("unix socket: cancelled");
    if (ready > 0) return absl::OkStatus();
    if (ready == 0 && patience.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat("unix socket: nobody ", what));
    }
  }
}

}  // namespace

absl::StatusOr<UnixSocket> UnixSocket::FromConnected(FileDescriptor file, uid_t user) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(file.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Failed("peer");
  if (peer.uid != user) {
    return absl::PermissionDeniedError(absl::StrCat(
        "unix socket: expected a process of user ", user, ", found one of user ", peer.uid,
        " (process ", peer.pid, "); only processes of one user share memory: use --link=grpc"));
  }
  UnixSocket connected;
  connected.file_ = std::move(file);
  connected.peer_pid_ = peer.pid;
  return connected;
}

absl::StatusOr<UnixSocket> UnixSocket::Connect(absl::string_view name, uid_t user) {
  GS_ASSIGN_OR_RETURN(FileDescriptor file, NewSocket(0));
  sockaddr_un address;
  const socklen_t length = SetAddress(name, &address);
  int result;
  do {
    result = connect(file.get(), reinterpret_cast<const sockaddr*>(&address), length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return Failed(absl::StrCat("cannot connect to ", name));
  return FromConnected(std::move(file), user);
}

absl::Status UnixSocket::Send(absl::string_view bytes, int file) const {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(file_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus() : Failed("cannot send");
}

absl::StatusOr<UnixMessage> UnixSocket::Receive(Deadline deadline, int cancel) const {
  GS_RETURN_IF_ERROR(AwaitReadable(file_.get(), deadline, cancel, "sent the expected message"));
  char buffer[kMaxMessage];
  iovec part = {buffer, sizeof(buffer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(file_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return Failed("cannot receive");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    errno = EMFILE;  // the kernel says no more than that the file did not come
    return Failed("cannot receive a file");
  }
  UnixMessage result;
  result.bytes.assign(buffer, static_cast<size_t>(received));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    // There is room for a second one, which nobody expects: then none is taken, and none kept open.
    const size_t files = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < files; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      FileDescriptor given(file);
      if (files == 1) result.file = std::move(given);
    }
  }
  return result;
}

absl::StatusOr<UnixListener> UnixListener::Listen() {
  UnixListener listener;
  GS_ASSIGN_OR_RETURN(listener.file_, NewSocket(SOCK_NONBLOCK));
  char random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) return Failed("no random name");
  listener.name_ =
      absl::StrCat("gradsync-", absl::BytesToHexString(absl::string_view(random, sizeof(random))));
  sockaddr_un address;
  const socklen_t length = SetAddress(listener.name_, &address);
  if (bind(listener.file_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return Failed("cannot bind");
  }
  if (listen(listener.file_.get(), SOMAXCONN) != 0) return Failed("cannot listen");
  return listener;
}

absl::StatusOr<UnixSocket> UnixListener::Accept(Deadline deadline, int cancel) const {
  while (true) {
    GS_RETURN_IF_ERROR(AwaitReadable(file_.get(), deadline, cancel, "connected"));
    FileDescriptor file(accept4(file_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!file.valid()) {
      if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
      return Failed("cannot accept");
    }
    absl::StatusOr<UnixSocket> connected = UnixSocket::FromConnected(std::move(file), geteuid());
    if (connected.ok() || !absl::IsPermissionDenied(connected.status())) return connected;
  }
}

}  // namespace gradsync
