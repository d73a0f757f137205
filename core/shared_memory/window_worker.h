// The worker's half of an exchange over windows: of a rank in a ring, or of a worker with parameter
// servers. The owner's half is core/shared_memory/window_owner.h.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_WORKER_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_WORKER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/plan/plan.h"
#include "core/shared_memory/window_group.h"

namespace gradsync {

// Tells the owners which gradients are complete, and resolves the handle of a bucket when all
// owners are done with it: only then is the own gradient no longer read and the result whole.
//
// Only one thread at a time may call Resolve(); PullParameters() and StoreParameters() need that
// nothing is launched meanwhile; the rest is thread-safe. Nothing blocks. A step allocates nothing.
class WindowWorker {
 public:
  // `windows` must outlive this object.
  explicit WindowWorker(GroupWindows* windows);

  // Threads that wait for handles are lent to `driver`. Before the first launch.
  void SetDriver(const std::weak_ptr<SyncDriver>& driver);

  // GradientSync::Launch(), in two parts; the caller has checked the order. Post() tells the others
  // that the gradient is complete. Returns whether all workers have launched the bucket now; then the
  // caller must see to it that owners learn of it, unless it does their part. Then comes what counts
  // the launch: Begin(), with its handle, or Complete().
  bool Post(const StepOptions& step, int bucket);
  SyncHandle Begin(const StepOptions& step, int bucket);

  // What was posted is done already. Returns whether all before it are resolved; then it is, too, and there
  // need be no handle. Under the right to Resolve().
  bool Complete();

  // Copies rank 0's parameters here.
  void PullParameters();

  // Where owners keep parameters alone: copies a bucket's from their shards here. The bucket's last
  // launch, if there was one, has resolved here, and whoever gathers launches later.
  void Gather(int bucket);

  // The same the other way, which is rank 0's work; between barriers.
  void StoreParameters(int bucket);

  // Whether the next handle is to be resolved.
  bool CanResolve() const;

  // Resolves all that are.
  void Resolve();

  // Launches that are counted.
  int64_t launched() const { return launched_.load(std::memory_order_acquire); }

  // The launch whose handle is to be resolved next.
  int64_t next() const { return resolved_.load(std::memory_order_acquire) + 1; }

  // Whether anything is launched and not resolved.
  bool waiting() const {
    return launched_.load(std::memory_order_acquire) > resolved_.load(std::memory_order_acquire);
  }

  // Nothing completes from here on: handles, those of later launches too, wait for Fail(), which
  // must follow.
  void Halt();

  // Ends everything: open handles, and all later ones, resolve with `status`, which is not OK. The
  // first call counts.
  void Fail(const absl::Status& status);

  // Of parameters pulled, by or from this rank, of what owners stored into its window, and of what
  // this rank owes others as an owner, whoever did it.
  WireStats wire_stats() const;

 private:
  // What the other owners store into this rank's memory in one exchange, and this rank as an owner
  // into others'.
  using Exchanged = WireStats;

  bool WritePost(const StepOptions& step, int bucket, int64_t launch);
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  int workers() const { return windows_.group().workers(); }

  GroupWindows& windows_;
  std::vector<Exchanged> exchanged_;  // by bucket
  std::atomic<bool> halted_{false};
  std::atomic<int64_t> launched_{0};
  std::atomic<int64_t> resolved_{0};
  WireCounter counter_;  // of parameters

  Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromiseSeries> promises_ ABSL_GUARDED_BY(mutex_);  // by bucket
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_WORKER_H_
