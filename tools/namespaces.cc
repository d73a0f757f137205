#include "tools/namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

// A descriptor, or an errno, from the process that makes namespaces.
struct Message {
  int error = 0;
  int fd = -1;
};

bool Send(int socket, int error, int fd) {
  iovec data = {&error, sizeof(error)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(error);
}

Message Receive(int socket) {
  Message received;
  iovec data = {&received.error, sizeof(received.error)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(received.error)) {
    received.error = EPIPE;
    return received;
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(&received.fd, CMSG_DATA(header), sizeof(received.fd));
  // One that did not fit was not lost on the way: this process may have no more descriptors.
  if (header == nullptr && received.error == 0) {
    received.error = (message.msg_flags & MSG_CTRUNC) != 0 ? EMFILE : EPIPE;
  }
  return received;
}

// What follows up to MakeInChild() runs after fork and may only make system calls.

int WriteFile(const char* path, const char* text, size_t size) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = write(fd, text, size) == static_cast<ssize_t>(size) ? 0 : errno;
  close(fd);
  return error;
}

struct IdMaps {
  std::string users;
  std::string groups;
};

int EnterNewUserNamespace(const IdMaps& maps) {
  if (unshare(CLONE_NEWUSER) != 0) return errno;
  // Otherwise our own files in /proc belong to somebody else now.
  prctl(PR_SET_DUMPABLE, 1);
  WriteFile("/proc/self/setgroups", "deny", 4);  // older kernels have none
  const int error = WriteFile("/proc/self/uid_map", maps.users.data(), maps.users.size());
  if (error != 0) return error;
  return WriteFile("/proc/self/gid_map", maps.groups.data(), maps.groups.size());
}

int SendNamespace(int socket, const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const bool sent = Send(socket, 0, fd);
  close(fd);
  return sent ? 0 : EPIPE;
}

// Sends the user namespace, or ours where that will do, and then `count` network namespaces.
[[noreturn]] void MakeInChild(int socket, int count, const IdMaps& maps) {
  int error = unshare(CLONE_NEWNET) == 0 ? 0 : errno;
  const bool as_ourselves = error == 0;
  if (error == EPERM) error = EnterNewUserNamespace(maps);
  if (error == 0 && as_ourselves && !Send(socket, EAGAIN, -1)) error = EPIPE;
  if (error == 0 && !as_ourselves) error = SendNamespace(socket, "/proc/self/ns/user");
  for (int i = 0; i < count && error == 0; ++i) {
    error = unshare(CLONE_NEWNET) == 0 ? SendNamespace(socket, "/proc/self/ns/net") : errno;
  }
  if (error != 0) Send(socket, error, -1);
  _exit(0);
}

absl::Status CannotMake(int error) {
  if (error == EPERM || error == EACCES || error == ENOSPC) {
    return absl::PermissionDeniedError(absl::StrCat(
        "cannot make network namespaces (", std::strerror(error),
        "): run it as root, or allow user namespaces: sysctl user.max_user_namespaces=10000 "
        "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 (those "
        "that exist); in a container start it with --privileged"));
  }
  return absl::ErrnoToStatus(error, "cannot make network namespaces");
}

void CloseAll(std::vector<int> fds) {
  for (int fd : fds) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace

int EnterNamespaces(const Namespaces& namespaces) {
  if (namespaces.user >= 0 && setns(namespaces.user, CLONE_NEWUSER) != 0) return errno;
  if (namespaces.network >= 0 && setns(namespaces.network, CLONE_NEWNET) != 0) return errno;
  return 0;
}

NetworkNamespaces::NetworkNamespaces(NetworkNamespaces&& other) noexcept
    : user_(std::exchange(other.user_, -1)), network_(std::exchange(other.network_, {})) {}

NetworkNamespaces& NetworkNamespaces::operator=(NetworkNamespaces&& other) noexcept {
  std::swap(user_, other.user_);
  std::swap(network_, other.network_);
  return *this;
}

NetworkNamespaces::~NetworkNamespaces() {
  CloseAll({user_});
  CloseAll(network_);
}

absl::StatusOr<NetworkNamespaces> NetworkNamespaces::Create(int count) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  const IdMaps maps = {absl::StrCat("0 ", geteuid(), " 1\n"),
                       absl::StrCat("0 ", getegid(), " 1\n")};
  const pid_t pid = fork();
  if (pid == 0) MakeInChild(sockets[1], count, maps);
  const int fork_error = errno;
  CloseAll({sockets[1]});
  const auto close_socket = absl::MakeCleanup([&] { CloseAll({sockets[0]}); });
  if (pid < 0) return absl::ErrnoToStatus(fork_error, "fork");
  const auto reap = absl::MakeCleanup([pid] { waitpid(pid, nullptr, 0); });

  NetworkNamespaces made;
  const Message user = Receive(sockets[0]);
  if (user.error != 0 && user.error != EAGAIN) return CannotMake(user.error);
  made.user_ = user.fd;
  for (int i = 0; i < count; ++i) {
    const Message network = Receive(sockets[0]);
    if (network.error != 0) return CannotMake(network.error);
    made.network_.push_back(network.fd);
  }
  return made;
}

absl::Status WriteSysctlInside(const Namespaces& namespaces, absl::string_view path,
                               absl::string_view text) {
  const std::string full_path = absl::StrCat("/proc/sys/net/", path);
  const std::string line = absl::StrCat(text, "\n");
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid == 0) {
    const int error = EnterNamespaces(namespaces);
    _exit(error != 0 ? error : WriteFile(full_path.c_str(), line.data(), line.size()));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  const int error = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  if (error == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write \"", text, "\" to ", full_path));
}

}  // namespace gradsync
