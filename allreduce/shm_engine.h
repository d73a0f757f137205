#ifndef GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
#define GRADSYNC_ALLREDUCE_SHM_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "allreduce/ring_owner.h"
#include "links/window.h"
#include "links/window_group.h"
#include "links/window_owner.h"
#include "plan/plan.h"
#include "plan/step_options.h"
#include "sync/sync_handle.h"
#include "sync/update_site.h"
#include "sync/window_worker.h"
#include "sync/wire_stats.h"

namespace gradsync {

struct ShmEngineOptions {
  std::shared_ptr<const WindowGroup> group;  // without servers
  int rank = 0;
  UpdateSite update_site = UpdateSite::kWorker;
  std::vector<std::shared_ptr<Window>> windows;  // by rank
  // Something went wrong on this rank. Must not block; Halt() and Fail() follow.
  std::function<void(absl::Status)> report;
};

// One rank's part in an exchange over memory that all ranks map: both halves, the worker's
// (sync/window_worker.h) and, for chunk `rank` of each stripe, the owner's (links/window_owner.h).
//
// A thread of this object does both, and sleeps while there is nothing to do. Thread-safe.
class ShmEngine {
 public:
  explicit ShmEngine(ShmEngineOptions options);

  // As Stop().
  ~ShmEngine();

  ShmEngine(const ShmEngine&) = delete;
  ShmEngine& operator=(const ShmEngine&) = delete;

  // As those of WindowWorker.
  SyncHandle Launch(const StepOptions& step, int bucket) { return worker_.Launch(step, bucket); }
  SyncHandle Refuse(absl::Status error) { return worker_.Refuse(std::move(error)); }
  void PullParameters() { worker_.PullParameters(); }
  void Halt();
  void Fail(const absl::Status& status);

  // Halts, and waits for the thread. Must not be called from `report`.
  void Stop();

  RingOwner& owner() { return owner_; }  // only while nothing is launched
  WireStats wire_stats() const;

 private:
  void Loop();
  bool halted() const { return halted_.load(std::memory_order_acquire); }

  const std::function<void(absl::Status)> report_;
  GroupWindows windows_;
  RingOwner owner_;
  WindowOwner reducer_;
  WindowWorker worker_;
  std::atomic<bool> halted_{false};
  std::thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
