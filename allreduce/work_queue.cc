#include "allreduce/work_queue.h"

#include <utility>

#include "absl/types/optional.h"

namespace gradsync {

TaskQueue::TaskQueue() : thread_([this] { Loop(); }) {}

TaskQueue::~TaskQueue() { Stop(); }

void TaskQueue::Add(Task task) {
  MutexLock lock(&mutex_);
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  changed_.Signal();
}

void TaskQueue::Stop() {
  Fifo<Task> dropped;  // destroyed without the mutex
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
    changed_.Signal();
  }
  dropped.clear();
  if (thread_.joinable()) thread_.join();
}

void TaskQueue::Loop() {
  for (;;) {
    Task task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopped_) changed_.Wait(&mutex_);
      if (stopped_) return;
      task = tasks_.pop_front();
    }
    std::move(task)();
  }
}

SyncHandle WorkQueue::Add(std::string what, std::function<absl::Status()> work) {
  const SyncPromise promise(std::move(what));
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return ResolvedHandle(failure_);
    pending_.push_back(promise);
    if (halted_) return promise.handle();
  }
  tasks_.Add([this, work = std::move(work)] { RunNext(work); });
  return promise.handle();
}

void WorkQueue::RunNext(const std::function<absl::Status()>& work) {
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
  }
  const absl::Status status = work();
  if (!status.ok()) return report_(status);
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
    promise = pending_.front();
    pending_.pop_front();
  }
  promise->Resolve(absl::OkStatus());
}

void WorkQueue::Halt() {
  MutexLock lock(&mutex_);
  halted_ = true;
}

void WorkQueue::Fail(const absl::Status& status) {
  std::deque<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    halted_ = true;
    failure_ = status;
    pending.swap(pending_);
  }
  for (const SyncPromise& promise : pending) promise.Resolve(status);
}

}  // namespace gradsync
