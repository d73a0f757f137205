#ifndef GRADSYNC_ALLREDUCE_WORK_QUEUE_H_
#define GRADSYNC_ALLREDUCE_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "allreduce/task_queue.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"

namespace gradsync {

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
