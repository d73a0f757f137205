// For tests: peers that say nothing, processes that stand still, and what this process lacks.

#ifndef GRADSYNC_CORE_BASE_FAULT_INJECTION_H_
#define GRADSYNC_CORE_BASE_FAULT_INJECTION_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/host_port.h"
#include "gtest/gtest.h"

namespace gradsync {

// A process that has a port of 127.0.0.1 and accepts nothing there, as one that is
// stopped. Its kernel takes connections from Listen() on, and refuses them before.
class DeafProcess {
 public:
  DeafProcess() : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(place);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&place), size), 0);
    EXPECT_EQ(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&place), &size), 0);
    address_ = FormatHostPort("127.0.0.1", ntohs(place.sin_port));
  }
  ~DeafProcess() { close(descriptor_); }
  DeafProcess(const DeafProcess&) = delete;
  DeafProcess& operator=(const DeafProcess&) = delete;

  void Listen() { EXPECT_EQ(listen(descriptor_, 64), 0); }
  const std::string& address() const { return address_; }

 private:
  const int descriptor_;
  std::string address_;
};

// A stranger's connection to a gRPC server of this host, which begins as HTTP/2 does and then says
// nothing.
class MuteConnection {
 public:
  explicit MuteConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    // The preface, empty SETTINGS, and the acknowledgement of the server's.
    constexpr char kBegin[] =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0";
    began_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
             send(fd_, kBegin, sizeof(kBegin) - 1, MSG_NOSIGNAL) == sizeof(kBegin) - 1;
  }
  ~MuteConnection() { close(fd_); }
  MuteConnection(const MuteConnection&) = delete;
  MuteConnection& operator=(const MuteConnection&) = delete;

  // Whether it began, and the server has ended it by the deadline.
  bool AwaitEnd(Deadline deadline) {
    pollfd readable = {fd_, POLLIN, 0};
    char bytes[4096];
    while (began_ && poll(&readable, 1, deadline.PollTimeout()) > 0) {
      if (recv(fd_, bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }

 private:
  const int fd_;
  bool began_ = false;
};

// Stops the calling process, all of its threads, for `time`, as a scheduler does that suspends a job.
inline void SuspendProcess(absl::Duration time) {
  const timespec pause = absl::ToTimespec(time);
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    kill(self, SIGSTOP);
    nanosleep(&pause, nullptr);
    kill(self, SIGCONT);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

// For as long as it lives this process can open no file and no socket.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDIN_FILENO);  // the smallest that is free
    close(next);
    rlimit none = before_;
    // Others may be closed meanwhile, by threads of libraries; the standard ones are not.
    none.rlim_cur = static_cast<rlim_t>(std::min(next, STDERR_FILENO + 1));
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FAULT_INJECTION_H_
