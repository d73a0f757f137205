#include "worker/train/replica_threads.h"

#include <algorithm>
#include <exception>

#include "ATen/ThreadLocalState.h"
#include "absl/strings/str_cat.h"
#include "worker/train/compute_options.h"

namespace gradsync {
namespace {

absl::Status Try(const std::function<absl::Status(int)>& work, int replica) {
  try {
    return work(replica);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("replica ", replica, ": LibTorch: ", e.what()));
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(int count, int threads)
    : threads_each_(std::max(1, threads / count)) {
  threads_.reserve(count);
  for (int r = 0; r < count; ++r) threads_.emplace_back([this, r] { Loop(r); });
}

ReplicaThreads::~ReplicaThreads() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    begun_.SignalAll();
  }
  for (Thread& thread : threads_) thread.join();
}

void ReplicaThreads::Loop(int replica) {
  SetComputeThreads(threads_each_);
  for (int64_t round = 0; AwaitTask(replica, &round);) {
    task_(replica);
    MutexLock lock(&mutex_);
    if (--working_ == 0) done_.Signal();
  }
}

bool ReplicaThreads::AwaitTask(int replica, int64_t* round) {
  MutexLock lock(&mutex_);
  while (!stopped_ && (*round == round_ || replica >= active_)) {
    *round = round_;
    begun_.Wait(&mutex_);
  }
  *round = round_;
  return !stopped_;
}

absl::Status ReplicaThreads::Run(int active, const std::function<absl::Status(int)>& work,
                                 const std::function<void()>& on_failure) {
  const at::ThreadLocalState caller;
  MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
  task_ = [&](int replica) {
    const at::ThreadLocalStateGuard as_caller(caller);
    const absl::Status status = Try(work, replica);
    if (status.ok()) return;
    MutexLock failure(&mutex_);
    if (!status_.ok()) return;
    status_ = status;
    on_failure();
  };
  active_ = working_ = std::min(active, count());
  ++round_;
  begun_.SignalAll();
  while (working_ > 0) done_.Wait(&mutex_);
  task_ = nullptr;
  return status_;
}

}  // namespace gradsync
