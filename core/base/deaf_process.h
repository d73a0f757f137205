#ifndef GRADSYNC_CORE_BASE_DEAF_PROCESS_H_
#define GRADSYNC_CORE_BASE_DEAF_PROCESS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "core/base/host_port.h"
#include "gtest/gtest.h"

namespace gradsync {

// For tests: a process that has a port of 127.0.0.1 and accepts nothing there, as one that is
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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_DEAF_PROCESS_H_
