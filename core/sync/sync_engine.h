// What one backend has of its own, below the life that all backends share (core/sync/group_sync.h).

#ifndef GRADSYNC_CORE_SYNC_SYNC_ENGINE_H_
#define GRADSYNC_CORE_SYNC_SYNC_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/gpu/gpu_api.h"
#include "core/group/side_channel.h"
#include "core/group/sync_handle.h"
#include "core/group/wire_stats.h"
#include "core/group/worker_group.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// What an engine has of its group. Outlives the engine. Report() and Publish() are thread-safe and
// never wait; side_channel() is for calls from GroupSync that may block, in which all ranks are.
class EngineHost {
 public:
  virtual const WorkerGroup& worker() const = 0;
  virtual const std::string& name() const = 0;  // of the backend, for messages; e.g. "ring"
  virtual SideChannel& side_channel() = 0;

  // This rank failed: halts the engine, then tells the group. Fail() follows. The first call of all
  // ranks counts.
  virtual void Report(absl::Status status) = 0;

  // The same for an engine that has halted itself: does not call Halt().
  virtual void Publish(absl::Status status) = 0;

 protected:
  ~EngineHost() = default;
};

// One backend's exchange. GroupSync calls it, in this order, and has checked what a caller may do
// when; so an engine knows nothing of calls before Bind(), after Shutdown(), after a failure, out
// of order or made twice, nor of states that do not fit the plan or belong to the caller.
//
// Calls do not overlap, but for those of a failure, each of which may come at any time from
// construction on, on any thread. An error that a call returns becomes the group's failure; no call
// needs to report it.
class SyncEngine {
 public:
  explicit SyncEngine(EngineHost& host) : host_(host) {}
  virtual ~SyncEngine() = default;
  SyncEngine(const SyncEngine&) = delete;
  SyncEngine& operator=(const SyncEngine&) = delete;

  // As GradientSync has them: from the start, and they do not change.
  virtual SyncIdentity identity() const = 0;
  virtual UpdateSite update_site() const = 0;
  virtual std::shared_ptr<GpuApi> gpu() const { return nullptr; }

  // What all ranks must have alike besides the plan and the update site, in words that follow
  // "rank 0 has "; empty where there is nothing.
  virtual std::string Terms() const = 0;

  // Bind(), in three parts. Collective: compares plans, update sites and Terms(). An engine does it
  // itself where others than ranks must hear of a difference. FAILED_PRECONDITION is a difference,
  // which every rank finds by itself, and does not become the group's failure.
  virtual absl::Status Agree(const Plan& plan, Deadline deadline);

  // Whether it can exchange such a plan; of its codec, say. No failure of the group either: all
  // ranks have the same plan.
  virtual absl::Status CheckPlan(const Plan& plan) const = 0;

  // Collective: allocates the buckets and connects. GroupSync then waits for all ranks, so that
  // nobody launches before everybody is connected.
  virtual absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) = 0;

  // As GradientSync::Launch(). Between Halt() and Fail() a launch may still come: its handle waits
  // for Fail().
  virtual absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) = 0;

  // Whether owners can keep parameters alone (BucketSlots::parameters); then the next two are as
  // GradientSync has them, and come for such plans only, in place of Broadcast().
  virtual bool keeps_parameters() const { return false; }
  virtual absl::StatusOr<SyncHandle> Gather(int bucket);
  virtual absl::Status StoreParameters(int bucket, Deadline deadline);

  // As GradientSync has them. `steps`: the number of the last step launched or imported. Export()
  // and Import() come only under kOwner, and ForgetResiduals() before every import.
  virtual absl::Status Broadcast(int64_t steps, Deadline deadline) = 0;
  virtual absl::Status Settle(Deadline) { return absl::OkStatus(); }
  virtual absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) = 0;
  virtual absl::Status Import(const OptimizerState& state, Deadline deadline) = 0;
  virtual void ForgetResiduals() {}

  // As GradientSync has them. ImportResiduals() comes only where the plan's codec is sparse, with a
  // state that fits, and replaces what was kept.
  virtual RankState ExportResiduals() { return RankState(); }
  virtual void ImportResiduals(const RankState&) {}

  // Only after Connect() succeeded.
  virtual WireStats wire_stats() const = 0;
  virtual Staleness staleness() const { return Staleness(); }

  // A failure, in three parts. Nothing completes from here on: handles, those of later launches
  // too, wait for Fail(), which follows. `why` is this rank's own reason, or the group's. May come
  // several times, also while one of the others runs; must not wait.
  virtual void Halt(const absl::Status& why) = 0;

  // The group has failed with `status`: ends what must have ended before handles resolve, within
  // StopBound(). Once, on a thread of the group's. Returns what this rank reports: `status`, or the
  // same with more words.
  virtual absl::Status Stop(absl::Status status) { return status; }
  virtual absl::Duration StopBound() const { return absl::ZeroDuration(); }

  // Once, after Stop(), on the same thread: open handles, and all later ones, resolve with
  // `status`.
  virtual void Fail(const absl::Status& status) = 0;

  // Shutdown(), in two parts, after Settle(). Collective, when all ranks have come: ends what a
  // failure of another rank must still be able to end.
  virtual absl::Status Drain(Deadline) { return absl::OkStatus(); }

  // Leaves in good order; from here on errors are no failure of the group.
  virtual absl::Status Leave(Deadline) { return absl::OkStatus(); }

  // The last call, after Leave() or when others can know of the failure: ends all threads and
  // streams, so that nothing calls the host any more. May block for some seconds.
  virtual void Close() = 0;

 protected:
  EngineHost& host() const { return host_; }
  int rank() const { return host_.worker().rank; }
  int world_size() const { return host_.worker().world_size; }
  SideChannel& side_channel() const { return host_.side_channel(); }

 private:
  EngineHost& host_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_SYNC_ENGINE_H_
