#ifndef GRADSYNC_WORKER_TRAIN_REPLICA_THREADS_H_
#define GRADSYNC_WORKER_TRAIN_REPLICA_THREADS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace gradsync {

// One thread for each replica of a model, for as long as this object lives: what LibTorch keeps for
// a thread, and a BLAS for its own, is made once.
//
// Not thread-safe: one thread calls Run().
class ReplicaThreads {
 public:
  // `count` at least 1. Each computes with its share of `threads`, at least with one.
  ReplicaThreads(int count, int threads);
  ~ReplicaThreads();

  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Calls work(r) on thread r, for each r below `active`, and blocks until all have returned.
  // LibTorch computes there as it does on the calling thread, for a profiler too. `on_failure` is
  // called once, on the thread that fails first, while others may still work: it should end their
  // waits. Errors: that first failure; INTERNAL with what LibTorch throws.
  absl::Status Run(int active, const std::function<absl::Status(int replica)>& work,
                   const std::function<void()>& on_failure);

  int count() const { return static_cast<int>(threads_.size()); }

  // With how many threads each computes.
  int threads_each() const { return threads_each_; }

 private:
  void Loop(int replica);
  bool AwaitTask(int replica, int64_t* round);

  const int threads_each_;
  Mutex mutex_;
  CondVar begun_;
  CondVar done_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;  // of calls of Run()
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  int working_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void(int)> task_;  // not changed while anybody works
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Thread> threads_;  // last: use all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_REPLICA_THREADS_H_
