#include "core/links/tcp_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Both ends of a connection over loopback.
class TcpConnectionsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int listener = socket(GetParam(), SOCK_STREAM, 0);
    sockaddr_storage address = {};
    address.ss_family = static_cast<sa_family_t>(GetParam());
    socklen_t size = sizeof(address);
    if (GetParam() == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    }
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0) {
      close(listener);
      GTEST_SKIP() << "no such addresses on this machine";
    }
    ASSERT_EQ(listen(listener, 1), 0);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    near_ = socket(GetParam(), SOCK_STREAM, 0);
    ASSERT_EQ(connect(near_, reinterpret_cast<sockaddr*>(&address), size), 0);
    far_ = accept(listener, nullptr, nullptr);
    ASSERT_GE(far_, 0);
    close(listener);
    remote_ =
        GetParam() == AF_INET
            ? absl::StrCat("127.0.0.1:", ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port))
            : absl::StrCat("[::1]:", ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port));
  }

  void TearDown() override {
    close(near_);
    close(far_);
  }

  // That of near_.
  TcpConnection Find() const {
    for (const TcpConnection& connection : TcpConnections()) {
      if (connection.remote == remote_) return connection;
    }
    ADD_FAILURE() << "no connection to " << remote_;
    return {};
  }

  int near_ = -1, far_ = -1;
  std::string remote_;
};

TEST_P(TcpConnectionsTest, WhatThePeersHostHasTakenInIsAcknowledgedThoughNobodyReadsIt) {
  ASSERT_EQ(write(near_, "abc", 3), 3);
  while (Find().unacked != 0 && !HasFailure()) {
  }
  EXPECT_NE(Find().id, 0u);
  EXPECT_LT(Find().since_ack, absl::Seconds(10));
}

TEST_P(TcpConnectionsTest, WhatThePeersHostHasNoRoomForIsNot) {
  fcntl(near_, F_SETFL, O_NONBLOCK);
  const std::string block(1 << 16, 'x');
  // The peer takes in as much as it has room for, however long that takes.
  for (int full = 0; full < 100;) {
    full = write(near_, block.data(), block.size()) > 0 ? 0 : full + 1;
  }
  EXPECT_GT(Find().unacked, 0);
}

TEST_P(TcpConnectionsTest, AConnectionThatIsShutEndsForItsHolderAndNoOther) {
  const int before = dup(far_);
  ShutTcpConnection(Find().id);
  char byte;
  EXPECT_EQ(read(near_, &byte, 1), 0);
  EXPECT_EQ(send(near_, "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(fcntl(far_, F_GETFD), fcntl(before, F_GETFD));
  close(before);
}

INSTANTIATE_TEST_SUITE_P(Families, TcpConnectionsTest, testing::Values(AF_INET, AF_INET6),
                         [](const auto& info) { return info.param == AF_INET ? "IPv4" : "IPv6"; });

}  // namespace
}  // namespace gradsync
