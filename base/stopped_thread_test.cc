#include "base/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/syscall.h>
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

// A child tells which thread is stopped, to one who asks for the first time and to one who was told of
// its first thread, while this process holds that one and another.
TEST(StoppedThreadTest, WhoWasToldOfAThreadIsToldOfItUntilItIsLetGo) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::thread waiting([&] {
      const int number = static_cast<int>(syscall(SYS_gettid));
      if (write(pipes[1], &number, sizeof(number)) != sizeof(number)) _exit(1);
      std::thread teller([&] {
        while (true) {
          const int told[] = {StoppedThread(), StoppedThread(getpid())};
          if (write(pipes[1], told, sizeof(told)) != sizeof(told)) _exit(1);
        }
      });
      teller.join();
    });
    waiting.join();
  }
  int waiting = 0;
  ASSERT_EQ(read(pipes[0], &waiting, sizeof(waiting)), static_cast<ssize_t>(sizeof(waiting)));
  const auto await = [&](int first_time, int again) {
    int told[] = {-1, -1};
    do {
      if (read(pipes[0], told, sizeof(told)) != sizeof(told)) return false;
    } while (told[0] != first_time || told[1] != again);
    return true;
  };
  EXPECT_TRUE(await(0, 0));
  for (const int thread : {child, waiting}) {
    if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      GTEST_SKIP() << "no ptrace here";
    }
    ASSERT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread);
  }
  EXPECT_TRUE(await(waiting, child));
  ASSERT_EQ(ptrace(PTRACE_DETACH, child, nullptr, nullptr), 0);
  EXPECT_TRUE(await(waiting, waiting));
  ASSERT_EQ(ptrace(PTRACE_DETACH, waiting, nullptr, nullptr), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace gradsync
