#include "base/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(StoppedThreadTest, ThereIsNoneInAProcessThatNobodyHolds) { EXPECT_EQ(StoppedThread(), 0); }

// A child tells again and again which of its threads is stopped; its first one, which only waits, is
// held by this process for a while.
TEST(StoppedThreadTest, AThreadThatADebuggerHoldsIsFoundUntilItIsLetGo) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::thread teller([&] {
      while (true) {
        const int stopped = StoppedThread();
        if (write(pipes[1], &stopped, sizeof(stopped)) != sizeof(stopped)) _exit(1);
      }
    });
    teller.join();
  }
  const auto await = [&](int expected) {
    int stopped = -1;
    do {
      if (read(pipes[0], &stopped, sizeof(stopped)) != sizeof(stopped)) return false;
    } while (stopped != expected);
    return true;
  };
  EXPECT_TRUE(await(0));
  if (ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    GTEST_SKIP() << "no ptrace here";
  }
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, child, nullptr, nullptr), 0);
  ASSERT_EQ(waitpid(child, nullptr, __WALL), child);
  EXPECT_TRUE(await(child));
  ASSERT_EQ(ptrace(PTRACE_DETACH, child, nullptr, nullptr), 0);
  EXPECT_TRUE(await(0));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace gradsync
