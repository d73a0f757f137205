#include "core/shared_memory/unix_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
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

TEST(UnixSocketTest, OfAMessageWithTwoFilesNoneIsTakenAndNoneStaysOpen) {
  const UnixListener listener = *UnixListener::Listen();
  const UnixSocket sender = *UnixSocket::Connect(listener.name());
  const Deadline deadline = Deadline::In(absl::Seconds(30));
  const UnixSocket receiver = *listener.Accept(deadline);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);

  char byte = 'x';
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * 2);
  const int files[2] = {ends[1], ends[1]};
  std::memcpy(CMSG_DATA(header), files, sizeof(files));
  ASSERT_EQ(sendmsg(sender.file(), &message, 0), 1);

  EXPECT_FALSE(receiver.Receive(deadline)->file.valid());
  close(ends[1]);
  // The end of the pipe: nobody has it open for writing any more.
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

}  // namespace
}  // namespace gradsync
