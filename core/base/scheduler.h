// Who runs threads and keeps the time. In production that is the machine, and there is no object of
// this kind; a simulation puts itself in its place for the thread that it runs in.

#ifndef GRADSYNC_CORE_BASE_SCHEDULER_H_
#define GRADSYNC_CORE_BASE_SCHEDULER_H_

#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace gradsync {

// Below MonotonicTime, Mutex, CondVar and Thread, and so below everything of ours that waits or
// asks what time it is. Where a thread has a scheduler, those four ask it instead of the machine.
//
// A scheduler runs all of its threads in the one that installed it, one at a time, and changes from
// one to another in no place but its own methods. So its methods need no locks.
class Scheduler {
 public:
  // That of the calling thread; null in production.
  static Scheduler* current() { return current_; }

  // For a scope, `scheduler` is that of the calling thread.
  class Scope {
   public:
    explicit Scope(Scheduler* scheduler) : before_(current_) { current_ = scheduler; }
    ~Scope() { current_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scheduler* const before_;
  };

  virtual ~Scheduler() = default;

  // Since MonotonicTime's origin.
  virtual absl::Duration Now() = 0;

  // Returns when somebody wakes `condition`, or at `until`, since the same origin; or earlier.
  virtual void Wait(const void* condition, absl::Duration until) = 0;
  virtual void Wake(const void* condition, bool all) = 0;

  // Lets others run: the caller has found a mutex taken.
  virtual void Yield() = 0;

  // Names a thread; never 0.
  using ThreadId = int64_t;
  virtual ThreadId Start(std::function<void()> body) = 0;
  // Returns when the thread has ended. Each thread is joined once.
  virtual void Join(ThreadId thread) = 0;
  virtual ThreadId this_thread() const = 0;

 private:
  static inline thread_local Scheduler* current_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SCHEDULER_H_
