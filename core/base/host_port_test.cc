#include "core/base/host_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(HostPortTest, NamesAndAddressesComeApartAndTogether) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const Case& c :
       {Case{"localhost:0", "localhost", 0}, Case{"10.0.0.1:29500", "10.0.0.1", 29500},
        Case{"gpu-01.cluster:65535", "gpu-01.cluster", 65535}, Case{"[::1]:80", "::1", 80},
        Case{"[fe80::1%eth0]:7", "fe80::1%eth0", 7}}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
    EXPECT_EQ(FormatHostPort(parsed->host, parsed->port), c.text);
  }
}

TEST(HostPortTest, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* text :
       {"", "localhost", ":80", "localhost:", "localhost:x", "localhost:-1", "localhost:+1",
        "localhost: 1", "localhost:65536", "localhost:99999999999", "::1:80", "[]:80", "[::1]",
        "unix:/tmp/socket:1", "a,b:80", "a b:80", "http://host:80"}) {
    const absl::Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(absl::string_view(text).data()), std::string::npos)
        << status;
  }
}

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
