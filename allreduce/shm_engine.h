#ifndef GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
#define GRADSYNC_ALLREDUCE_SHM_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "allreduce/ring_owner.h"
#include "base/mutex.h"
#include "links/window.h"
#include "links/window_signals.h"
#include "plan/plan.h"
#include "plan/shard_map.h"
#include "plan/step_options.h"
#include "plan/window_layout.h"
#include "sync/flat_buckets.h"
#include "sync/sync_handle.h"
#include "sync/update_site.h"
#include "sync/wire_stats.h"

namespace gradsync {

struct ShmEngineOptions {
  Plan plan;
  int rank = 0;
  UpdateSite update_site = UpdateSite::kWorker;
  std::vector<std::shared_ptr<Window>> windows;  // by rank, laid out as ShmLayout() says
  // Something went wrong on this rank. Must not block; Halt() and Fail() follow.
  std::function<void(absl::Status)> report;
};

// Layout of the windows of all ranks.
WindowLayout ShmLayout(const Plan& plan);

// One rank's part in an exchange over memory that all ranks map. Rank c owns chunk c of each
// stripe. A launch marks this rank's gradient as ready; when all ranks' are, each owner folds its
// chunks from everybody's gradients, in the plan's order, and stores the results into everybody's
// buffers, in one pass:
//
//   kWorker   the mean, into all gradients;
//   kOwner    the mean into the own gradient, then the updated parameters into all parameters.
//
// An exchange is complete at a rank when all owners are done with it: only then is its gradient no
// longer read and its result whole. When a step clips (max_norm > 0, kOwner), owners keep their
// means to the step's end, read each other's sums of squares, then update.
//
// A thread of this object does the owner's part, and sleeps while there is none. Thread-safe.
class ShmEngine {
 public:
  explicit ShmEngine(ShmEngineOptions options);

  // As Stop().
  ~ShmEngine();

  ShmEngine(const ShmEngine&) = delete;
  ShmEngine& operator=(const ShmEngine&) = delete;

  // As GradientSync::Launch(); the caller has checked the order.
  SyncHandle Launch(const StepOptions& step, int bucket);

  // A launch that is refused: reports `error`, and the handle resolves when the failure is settled.
  SyncHandle Refuse(absl::Status error);

  // Copies rank 0's parameters here. The caller sees to it that meanwhile nothing is launched.
  void PullParameters();

  // Nothing completes from here on: handles, those of later launches too, wait for Fail(), which
  // must follow.
  void Halt();

  // Ends everything: open handles, and all later ones, resolve with `status`, which is not OK. The
  // first call counts.
  void Fail(absl::Status status);

  // Halts, and waits for the thread. Must not be called from `report`.
  void Stop();

  RingOwner& owner() { return owner_; }  // only while nothing is launched
  WireStats wire_stats() const;

 private:
  struct OpenBucket {
    StepOptions step;
    absl::optional<SyncPromise> promise;
  };
  // What the other owners store into this rank's memory in one exchange.
  struct Incoming {
    int64_t bytes = 0;
    int64_t messages = 0;
  };

  void Loop();
  bool CanExchange() const;
  bool CanResolve() const;
  absl::Duration Patience() const;
  void Exchange();
  void ExchangeChunk(const StepOptions& step, SegmentId id);
  void Clip(const StepOptions& step);
  void UpdateAndStore(const StepOptions& step, SegmentId id);
  void CountStored(int64_t bytes);
  void ResolveComplete();
  absl::Status CheckNotes() const;

  int world_size() const { return options_.plan.world_size(); }
  bool halted() const { return halted_.load(std::memory_order_acquire); }
  bool clips(const StepOptions& step) const {
    return options_.update_site == UpdateSite::kOwner && step.max_norm > 0;
  }

  const ShmEngineOptions options_;
  const int buckets_;
  std::vector<std::vector<BucketMemory>> memory_;  // by rank, by bucket
  std::vector<absl::Span<double>> squares_;        // by rank
  std::vector<Incoming> incoming_;                 // by bucket
  WindowSignals signals_;
  RingOwner owner_;
  std::atomic<bool> halted_{false};
  std::atomic<int64_t> launched_{0};
  std::atomic<int64_t> tx_bytes_{0};
  std::atomic<int64_t> rx_bytes_{0};
  std::atomic<int64_t> tx_messages_{0};
  std::atomic<int64_t> rx_messages_{0};

  // Of the thread. Launches are numbered from 1.
  int64_t exchanged_ = 0;
  int64_t resolved_ = 0;
  uint32_t measured_ = 0;
  std::vector<const float*> ins_;
  std::vector<float*> outs_;

  Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<OpenBucket> open_ ABSL_GUARDED_BY(mutex_);  // by bucket
  std::vector<SyncPromise> refused_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
