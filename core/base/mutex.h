// A mutex, a condition variable and a notification that ThreadSanitizer sees.
//
// absl::Mutex comes compiled, without instrumentation, from the system; under `--config=tsan`
// everything that it guards is reported as a race. These wrap std::mutex and
// std::condition_variable, which the sanitizer intercepts, and carry the annotations that
// `-Wthread-safety` checks. Use them wherever a test under tsan is to mean something.

#ifndef GRADSYNC_CORE_BASE_MUTEX_H_
#define GRADSYNC_CORE_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/scheduler.h"

namespace gradsync {

// Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (mutex_.try_lock()) return;
    Scheduler* const scheduler = Scheduler::current();
    if (scheduler == nullptr) return mutex_.lock();
    do scheduler->Yield();
    while (!mutex_.try_lock());
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
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

// Waits may end early: call them in a loop that checks what is waited for. In a simulation
// (core/base/scheduler.h), the simulation's scheduler keeps who waits.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (Scheduler::current() != nullptr) return WaitSimulated(mutex, Deadline::Never());
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
    if (Scheduler::current() != nullptr) {
      WaitSimulated(mutex, deadline);
      return deadline.passed();
    }
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait_until(lock, deadline.ToSteady());
    lock.release();
    return deadline.passed();
  }

  void Signal() {
    if (Scheduler* const scheduler = Scheduler::current()) scheduler->Wake(this, /*all=*/false);
    condition_.notify_one();
  }
  void SignalAll() {
    if (Scheduler* const scheduler = Scheduler::current()) scheduler->Wake(this, /*all=*/true);
    condition_.notify_all();
  }

 private:
  // Nobody runs between the release of the mutex and the wait.
  void WaitSimulated(Mutex* mutex, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mutex->Unlock();
    Scheduler::current()->Wait(this, deadline.time().since_origin());
    mutex->Lock();
  }

  std::condition_variable condition_;
};

// As absl::Notification, but ThreadSanitizer sees that what came before Notify() came before
// what is done after waiting. Thread-safe. Whoever destroys it waits for those who wait here, so
// that a test may notify and end; one that has yet to come must not find it gone.
class Notification {
 public:
  Notification() = default;
  ~Notification() {
    MutexLock lock(&mutex_);
    while (waiting_ > 0) changed_.Wait(&mutex_);
  }
  Notification(const Notification&) = delete;
  Notification& operator=(const Notification&) = delete;

  void Notify() {
    MutexLock lock(&mutex_);
    notified_ = true;
    changed_.SignalAll();
  }
  bool HasBeenNotified() const {
    MutexLock lock(&mutex_);
    return notified_;
  }
  void WaitForNotification() const {
    MutexLock lock(&mutex_);
    ++waiting_;
    while (!notified_) changed_.Wait(&mutex_);
    if (--waiting_ == 0) changed_.SignalAll();
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
  mutable int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_MUTEX_H_
