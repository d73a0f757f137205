// A rank of a ring over Gloo died of SIGPIPE where a peer had closed its connection, without a
// word.

#include "core/base/no_sigpipe.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// What a write to a pipe that nobody reads leaves in errno.
int WriteToNobody() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  close(ends[0]);
  const ssize_t written = write(ends[1], "x", 1);
  const int error = written < 0 ? errno : 0;
  close(ends[1]);
  return error;
}

class NoSigpipeTest : public testing::Test {
 protected:
  void SetUp() override { signal(SIGPIPE, SIG_DFL); }  // whatever started the test
};

TEST_F(NoSigpipeTest, AWriteToNobodyIsAnError) {
  {
    NoSigpipe guard;
    EXPECT_EQ(WriteToNobody(), EPIPE);
    {
      NoSigpipe nested;
      EXPECT_EQ(WriteToNobody(), EPIPE);
    }
    EXPECT_EQ(WriteToNobody(), EPIPE);
  }
  // Nothing was left for later.
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST_F(NoSigpipeTest, ThreadsThatWereStartedMeanwhileKeepIt) {
  std::thread thread;
  int error = 0;
  {
    NoSigpipe guard;
    thread = std::thread([&error] { error = WriteToNobody(); });
  }
  thread.join();
  EXPECT_EQ(error, EPIPE);
}

TEST_F(NoSigpipeTest, AfterwardsTheSignalIsAsBefore) {
  { NoSigpipe guard; }
  EXPECT_EXIT(WriteToNobody(), testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace gradsync
