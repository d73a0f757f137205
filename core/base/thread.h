// Threads of ours, and what the kernel says of any.

#ifndef GRADSYNC_CORE_BASE_THREAD_H_
#define GRADSYNC_CORE_BASE_THREAD_H_

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "core/base/scheduler.h"

namespace gradsync {

// std::thread, or one of the simulation in which it is made (core/base/scheduler.h). Movable,
// thread-compatible; must be joined before it is destroyed, as a std::thread must.
class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body) : scheduler_(Scheduler::current()) {
    if (scheduler_ != nullptr) {
      simulated_ = scheduler_->Start(std::move(body));
    } else {
      thread_ = std::thread(std::move(body));
    }
  }
  Thread(Thread&& other) noexcept
      : scheduler_(other.scheduler_),
        simulated_(std::exchange(other.simulated_, 0)),
        thread_(std::move(other.thread_)) {}
  Thread& operator=(Thread&& other) noexcept {
    scheduler_ = other.scheduler_;
    simulated_ = std::exchange(other.simulated_, 0);
    thread_ = std::move(other.thread_);
    return *this;
  }

  bool joinable() const { return simulated_ != 0 || thread_.joinable(); }

  void join() {
    if (simulated_ != 0) return scheduler_->Join(std::exchange(simulated_, 0));
    thread_.join();
  }

  // Whether it is the one that asks.
  bool IsCurrent() const {
    if (simulated_ != 0) return scheduler_->this_thread() == simulated_;
    return thread_.get_id() == std::this_thread::get_id();
  }

 private:
  Scheduler* scheduler_ = nullptr;
  Scheduler::ThreadId simulated_ = 0;
  std::thread thread_;
};

// While one of these lives, this thread may fail to start another one, which it can do without: the
// failure is then its own to handle (std::system_error), and does not end the program
// (core/program/last_words.h). For scopes; each thread has its own.
class RefusableThreads {
 public:
  RefusableThreads() { ++depth_; }
  ~RefusableThreads() { --depth_; }
  RefusableThreads(const RefusableThreads&) = delete;
  RefusableThreads& operator=(const RefusableThreads&) = delete;

  static bool allowed() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// For calls that may hang and cannot be interrupted: runs `call` on a thread of its own, and
// destroys it there. Returns true when that is done, or false after `bound`, while it goes on by
// itself: whatever it uses it must own. Thread-safe.
bool RunBounded(absl::Duration bound, std::function<void()> call);

// What the kernel says of a thread, of this process or of another.
struct ThreadState {
  bool stopped = false;  // by a signal, or held by a debugger
  bool ending = false;   // it has ended, or is about to
};

// `folder`: "/proc/self/task/4711", or "/proc/4711" for the first thread of a process. Neither for a
// thread that is gone. Takes some microseconds. Thread-safe.
ThreadState ReadThreadState(const std::string& folder);

// The number of a thread of this process that is held, as by a debugger, while the caller runs; 0 if
// there is none, or the kernel does not say. Of several it is `before` if that is one of them: who
// asks again and again with the last answer follows one thread, though others are held in turn. Takes
// some microseconds for each thread. Thread-safe.
int StoppedThread(int before = 0);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_THREAD_H_
