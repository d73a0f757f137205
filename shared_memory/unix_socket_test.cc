#include "shared_memory/unix_socket.h"

#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(UnixSocketTest, AListenerOfAnotherUserIsRefusedNamingBothAndTheWayOut) {
  const UnixListener listener = *UnixListener::Listen();
  EXPECT_TRUE(UnixSocket::Connect(listener.name()).ok());
  const absl::Status refused = UnixSocket::Connect(listener.name(), geteuid() + 1).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  for (const std::string& text :
       {absl::StrCat("of user ", geteuid() + 1), absl::StrCat("of user ", geteuid())}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), text)) << refused;
  }
  EXPECT_TRUE(absl::EndsWith(refused.message(), "use --link=grpc")) << refused;
}

}  // namespace
}  // namespace gradsync
