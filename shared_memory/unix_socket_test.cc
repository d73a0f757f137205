#include "shared_memory/unix_socket.h"

#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/no_descriptors_left.h"
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

// Whoever sent it was taken for one that sends something else.
TEST(UnixSocketTest, AFileForWhichThereIsNoDescriptorIsMissedForThatReason) {
  const UnixListener listener = *UnixListener::Listen();
  const UnixSocket sender = *UnixSocket::Connect(listener.name());
  const Deadline deadline = Deadline::In(absl::Seconds(30));
  const UnixSocket receiver = *listener.Accept(deadline);
  ASSERT_EQ(sender.Send("first", sender.file()), absl::OkStatus());
  EXPECT_TRUE(receiver.Receive(deadline)->file.valid());
  ASSERT_EQ(sender.Send("second", sender.file()), absl::OkStatus());
  absl::Status status;
  {
    const NoDescriptorsLeft none;
    status = receiver.Receive(deadline).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace gradsync
