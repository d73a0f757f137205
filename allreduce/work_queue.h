#ifndef GRADSYNC_ALLREDUCE_WORK_QUEUE_H_
#define GRADSYNC_ALLREDUCE_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/fifo.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/group/sync_handle.h"

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

// Exchanges that block, done one after the other on a thread of this object, each with a handle:
// for backends that stand on a library or a channel of blocking calls. Thread-safe, but for Stop().
//
// Halt() and Fail() are an engine's (core/sync/sync_engine.h).
class WorkQueue {
 public:
  // `report` hears the error of work that fails; it must not block, and Halt() and Fail() follow.
  explicit WorkQueue(std::function<void(absl::Status)> report) : report_(std::move(report)) {}

  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Never waits. `what` names the work in deadline errors.
  SyncHandle Add(std::string what, std::function<absl::Status()> work);

  // Nothing completes from here on, and no work begins: handles, those of later work too, wait for
  // Fail(), which must follow.
  void Halt();

  // Open handles, and all later ones, resolve with `status`.
  void Fail(const absl::Status& status);

  // Waits for the work that is under way. Must not be called from it.
  void Stop() { tasks_.Stop(); }

 private:
  void RunNext(const std::function<absl::Status()>& work);

  const std::function<void(absl::Status)> report_;
  Mutex mutex_;
  bool halted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);  // in the order of the queue
  TaskQueue tasks_;  // last: its thread uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_WORK_QUEUE_H_
