#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/thread.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// A child process, of which this one may hold threads as a debugger does.
class Child {
 public:
  // The child does `run` until it is killed, and its first thread only waits for it.
  explicit Child(const std::function<void(const Child& self)>& run) {
    EXPECT_EQ(pipe(pipes_), 0);
    pid_ = fork();
    if (pid_ == 0) std::thread([&] { run(*this); }).join();
  }

  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (int end : pipes_) close(end);
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int first_thread() const { return pid_; }

  // In the child.
  void Tell(const std::vector<int>& numbers) const {
    const ssize_t bytes = static_cast<ssize_t>(numbers.size() * sizeof(int));
    if (write(pipes_[1], numbers.data(), bytes) != bytes) _exit(1);
  }

  // What it told next. Empty where it has ended.
  std::vector<int> Hear(size_t count) const {
    std::vector<int> numbers(count);
    const ssize_t bytes = static_cast<ssize_t>(count * sizeof(int));
    if (read(pipes_[0], numbers.data(), bytes) != bytes) numbers.clear();
    return numbers;
  }

  // Whether it tells these, sooner or later.
  bool Await(const std::vector<int>& expected) const {
    std::vector<int> heard;
    do {
      heard = Hear(expected.size());
    } while (!heard.empty() && heard != expected);
    return heard == expected;
  }

  // False where there is no ptrace.
  bool Hold(int thread) const {
    if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) return false;
    EXPECT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(thread, nullptr, __WALL), thread);
    return true;
  }
  void LetGo(int thread) const { EXPECT_EQ(ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0); }

 private:
  int pipes_[2] = {-1, -1};
  pid_t pid_ = 0;
};

TEST(StoppedThreadTest, ThereIsNoneInAProcessThatNobodyHolds) { EXPECT_EQ(StoppedThread(), 0); }

TEST(StoppedThreadTest, AThreadThatADebuggerHoldsIsFoundUntilItIsLetGo) {
  const Child child([](const Child& self) {
    while (true) self.Tell({StoppedThread()});
  });
  const int first = child.first_thread();
  EXPECT_TRUE(child.Await({0}));
  if (!child.Hold(first)) GTEST_SKIP() << "no ptrace here";
  EXPECT_TRUE(child.Await({first}));
  child.LetGo(first);
  EXPECT_TRUE(child.Await({0}));
}

// The child tells what one hears who asks for the first time, and one who was told of its first thread.
TEST(StoppedThreadTest, WhoWasToldOfAThreadIsToldOfItUntilItIsLetGo) {
  const Child child([](const Child& self) {
    self.Tell({static_cast<int>(syscall(SYS_gettid))});
    std::thread([&self] {
      while (true) self.Tell({StoppedThread(), StoppedThread(getpid())});
    }).join();
  });
  const int first = child.first_thread();
  const std::vector<int> told = child.Hear(1);
  ASSERT_EQ(told.size(), 1u);
  const int second = told[0];
  EXPECT_TRUE(child.Await({0, 0}));
  if (!child.Hold(first) || !child.Hold(second)) GTEST_SKIP() << "no ptrace here";
  EXPECT_TRUE(child.Await({second, first}));
  child.LetGo(first);
  EXPECT_TRUE(child.Await({second, second}));
  child.LetGo(second);
}

}  // namespace
}  // namespace gradsync
