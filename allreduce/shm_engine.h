#ifndef GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
#define GRADSYNC_ALLREDUCE_SHM_ENGINE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "allreduce/ring_owner.h"
#include "core/base/trace_recorder.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_engine.h"
#include "core/shared_memory/window_group.h"

namespace gradsync {

struct ShmEngineOptions {
  std::shared_ptr<const WindowGroup> group;  // without servers
  int rank = 0;
  UpdateSite update_site = UpdateSite::kWorker;
  std::vector<std::shared_ptr<Window>> windows;  // by rank
  // Something went wrong on this rank. Must not block; Halt() and Fail() follow.
  std::function<void(absl::Status)> report;
  absl::optional<bool> shares_cores;        // WindowEngineOptions
  std::shared_ptr<TraceRecorder> recorder;  // of some steps; may be null
};

// One rank's part in an exchange over memory that all ranks map: both halves, the worker's
// (core/shared_memory/window_worker.h) and, for chunk `rank` of each stripe, the owner's
// (core/shared_memory/window_owner.h). Thread-safe.
class ShmEngine {
 public:
  explicit ShmEngine(ShmEngineOptions options);

  // As Stop().
  ~ShmEngine();

  ShmEngine(const ShmEngine&) = delete;
  ShmEngine& operator=(const ShmEngine&) = delete;

  // As those of WindowEngine.
  SyncHandle Launch(const StepOptions& step, int bucket) { return engine_->Launch(step, bucket); }
  void PullParameters() { engine_->PullParameters(); }
  void Gather(int bucket) { engine_->Gather(bucket); }
  void StoreParameters(int bucket) { engine_->StoreParameters(bucket); }
  void Halt() { engine_->Halt(); }
  void Fail(const absl::Status& status) { engine_->Fail(status); }
  void Stop() { engine_->Stop(); }
  WireStats wire_stats() const { return engine_->wire_stats(); }

  RingOwner& owner() { return owner_; }  // only while nothing is launched

 private:
  const std::shared_ptr<GroupWindows> windows_;
  RingOwner owner_;
  const std::shared_ptr<WindowEngine> engine_;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_SHM_ENGINE_H_
