#ifndef GRADSYNC_BASE_NOTIFICATION_H_
#define GRADSYNC_BASE_NOTIFICATION_H_

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace gradsync {

// As absl::Notification, for tests: ThreadSanitizer sees that what came before Notify() came before
// what is done after waiting. Thread-safe.
class Notification {
 public:
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
    while (!notified_) changed_.Wait(&mutex_);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_BASE_NOTIFICATION_H_
