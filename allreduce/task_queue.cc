#include "allreduce/task_queue.h"

#include <utility>

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

}  // namespace gradsync
