#ifndef GRADSYNC_CORE_BASE_NOTIFICATION_H_
#define GRADSYNC_CORE_BASE_NOTIFICATION_H_

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace gradsync {

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

#endif  // GRADSYNC_CORE_BASE_NOTIFICATION_H_
