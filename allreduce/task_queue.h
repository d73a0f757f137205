#ifndef GRADSYNC_ALLREDUCE_TASK_QUEUE_H_
#define GRADSYNC_ALLREDUCE_TASK_QUEUE_H_

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "core/base/fifo.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace gradsync {

// One thread that runs tasks in the order in which they were added. Thread-safe.
//
// Whoever owns one declares it last among its members, so that its thread ends before what the
// tasks use.
class TaskQueue {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  TaskQueue();

  // As Stop().
  ~TaskQueue();

  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Never waits. After Stop() the task is destroyed and not run.
  void Add(Task task);

  // Waits for the task that runs and drops those that have not begun. Must not be called from a
  // task.
  void Stop();

 private:
  void Loop();

  Mutex mutex_;
  CondVar changed_;
  Fifo<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_TASK_QUEUE_H_
