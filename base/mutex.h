// A mutex and a condition variable that ThreadSanitizer sees.
//
// absl::Mutex comes compiled, without instrumentation, from the system; under `--config=tsan`
// everything that it guards is reported as a race. These wrap std::mutex and
// std::condition_variable, which the sanitizer intercepts, and carry the annotations that
// `-Wthread-safety` checks. Use them wherever a test under tsan is to mean something.
#ifndef GRADSYNC_BASE_MUTEX_H_
#define GRADSYNC_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"

namespace gradsync {

// Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits may end early: call them in a loop that checks what is waited for.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // Returns true when the deadline has passed.
  bool WaitWithDeadline(Mutex* mutex, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (deadline.never()) {
      Wait(mutex);
      return false;
    }
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait_until(lock, deadline.ToSteady());
    lock.release();
    return deadline.passed();
  }

  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BASE_MUTEX_H_
