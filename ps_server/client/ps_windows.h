// A worker's half of exchanges with servers whose memory it shares.

#ifndef GRADSYNC_PS_SERVER_CLIENT_PS_WINDOWS_H_
#define GRADSYNC_PS_SERVER_CLIENT_PS_WINDOWS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_engine.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_mesh.h"

namespace gradsync {

struct PsWindowsOptions {
  WorkerGroup group;
  std::vector<std::string> servers;  // what each is called
  UpdateSite update_site = UpdateSite::kWorker;
  // What went wrong here, or who was lost. Must not block; Fail() follows.
  std::function<void(absl::Status)> report;
};

// The worker's half (core/shared_memory/window_engine.h), and the connections to all other workers
// and servers. Thread-safe, but what WindowWorker says of PullParameters() holds.
class PsWindows {
 public:
  // Creates the own window. Errors: those of Window::Create() and WindowMesh::Create().
  static absl::StatusOr<std::unique_ptr<PsWindows>> Create(const Plan& plan, const ShardMap& shards,
                                                           PsWindowsOptions options);
  ~PsWindows();

  const WindowGroup& group() const { return *group_; }
  const std::shared_ptr<Window>& window() const { return window_; }

  // Where the others find this rank's window.
  const std::string& address() const { return mesh_->address(); }

  // Once, before what follows. `addresses` of all workers, then all servers. Blocks until all are
  // connected. Errors: those of WindowMesh::Connect(); what Fail() was given.
  absl::Status Connect(const std::vector<std::string>& addresses, Deadline deadline);

  SyncHandle Launch(const StepOptions& step, int bucket) { return engine_->Launch(step, bucket); }
  void PullParameters() { engine_->PullParameters(); }
  void Gather(int bucket) { engine_->Gather(bucket); }
  void StoreParameters(int bucket) { engine_->StoreParameters(bucket); }

  // Nothing completes from here on: handles, those of later launches too, wait for Fail(), which
  // must follow. Does not block.
  void Halt();

  // Open handles, and all later ones, resolve with `status`. Does not block.
  void Fail(const absl::Status& status);

  // This worker is about to leave in good order, and others may.
  void Leave() { mesh_->Leave(); }

  // Ends the threads: `report` is not called after this returned. Must not be called from it.
  void Stop();

  WireStats wire_stats() const;

 private:
  PsWindows(const Plan& plan, const ShardMap& shards, PsWindowsOptions options);

  const PsWindowsOptions options_;
  const std::shared_ptr<const WindowGroup> group_;
  std::shared_ptr<Window> window_;
  std::unique_ptr<WindowMesh> mesh_;
  mutable Mutex mutex_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WindowEngine> engine_;  // written once by Connect(), under mutex_
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_PS_WINDOWS_H_
