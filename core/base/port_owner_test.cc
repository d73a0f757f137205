#include "core/base/port_owner.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// The port of a socket that listens at the loopback address.
int Listen(int family, int* fd) {
  *fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage address = {};
  address.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(*fd, any, size) != 0 || listen(*fd, 1) != 0 || getsockname(*fd, any, &size) != 0) {
    return 0;
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

TEST(PortOwnerTest, TheProcessThatListensAtAPortIsNamed) {
  std::string name;
  std::getline(std::ifstream("/proc/self/comm"), name);
  for (const int family : {AF_INET, AF_INET6}) {
    int fd = -1;
    const int port = Listen(family, &fd);
    if (family == AF_INET6 && port == 0) {
      close(fd);
      GTEST_SKIP() << "there is no IPv6";
    }
    EXPECT_EQ(PortOwner(port), absl::StrCat("process ", getpid(), " (", name, ")"));
    close(fd);
    EXPECT_EQ(PortOwner(port), "");
  }
}

}  // namespace
}  // namespace gradsync
