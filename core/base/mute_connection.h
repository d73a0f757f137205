#ifndef GRADSYNC_CORE_BASE_MUTE_CONNECTION_H_
#define GRADSYNC_CORE_BASE_MUTE_CONNECTION_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/deadline.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_MUTE_CONNECTION_H_
