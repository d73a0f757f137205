#include "allreduce/shm_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "allreduce/collect_state.h"
#include "allreduce/shm_engine.h"
#include "base/host_identity.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "links/in_memory_store.h"
#include "links/window.h"
#include "links/window_group.h"
#include "links/window_mesh.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/agree_on_plan.h"
#include "sync/group_error.h"
#include "sync/launch_order.h"
#include "sync/side_channel.h"
#include "sync/window_buckets.h"

namespace gradsync {
namespace {

// How long the destructor waits for its farewell to be published; GroupError's own limit is
// shorter.
constexpr absl::Duration kFarewell = absl::Seconds(5);

class ShmRingGradientSync : public GradientSync {
 public:
  explicit ShmRingGradientSync(ShmRingOptions options);
  ~ShmRingGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, absl::Time deadline) override;
  absl::Status BroadcastParameters(absl::Time deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  absl::StatusOr<OptimizerState> ExportOptimizerState(absl::Time deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, absl::Time deadline) override;
  absl::Status status() const override { return group_error_.status(); }
  void Abort(absl::Status reason) override;
  absl::Status Shutdown(absl::Time deadline) override;
  WireStats wire_stats() const override {
    return engine_ != nullptr ? engine_->wire_stats() : WireStats();
  }

 private:
  absl::Status MakeWindow(const Plan& plan);
  absl::StatusOr<std::vector<std::string>> ExchangeAddresses(const Plan& plan, absl::Time deadline);
  absl::Status MakeEngine(absl::Time deadline);
  absl::Status CheckUsable() const;
  void Report(absl::Status status);
  absl::Status Failed(absl::Status status);
  void OnFailure(absl::Status status);

  const ShmRingOptions options_;
  SideChannel side_channel_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  int64_t steps_done_ = 0;  // of the optimizer, under kOwner
  bool bound_ = false;      // Bind() was called and succeeded
  bool bind_called_ = false;
  bool left_ = false;
  std::shared_ptr<const WindowGroup> window_group_;
  std::shared_ptr<Window> window_;

  // What OnFailure(), which runs on a thread of group_error_, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  const SyncPromise failed_;           // resolved when OnFailure() is done
  std::shared_ptr<WindowMesh> mesh_;   // written once by Bind(), under mutex_; null with one rank
  std::shared_ptr<ShmEngine> engine_;  // the same; destroyed before the mesh

  GroupError group_error_;  // last: its threads use all of the above
};

ShmRingGradientSync::ShmRingGradientSync(ShmRingOptions options)
    : options_(std::move(options)),
      side_channel_(options_.group, "shm"),
      failed_("the group's failure"),
      group_error_(options_.group, [this](absl::Status status) { OnFailure(std::move(status)); }) {}

ShmRingGradientSync::~ShmRingGradientSync() {
  if (!left_) {
    Report(
        absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " left without Shutdown")));
    // Others learn why before they see connections end.
    failed_.handle().Wait(absl::Now() + kFarewell).IgnoreError();
  }
  // Their threads report to group_error_, which is destroyed before them.
  if (engine_ != nullptr) engine_->Stop();
  if (mesh_ != nullptr) mesh_->Stop();
}

absl::StatusOr<std::vector<GradBucket>> ShmRingGradientSync::Bind(const Plan& plan,
                                                                  absl::Time deadline) {
  GS_RETURN_IF_ERROR(status());
  if (bind_called_) return absl::FailedPreconditionError("Bind: expected one call, found a second");
  bind_called_ = true;
  const WorkerGroup& group = options_.group;
  if (plan.world_size() != group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ", group.world_size));
  }
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel_, plan, deadline));
  GS_RETURN_IF_ERROR(
      CheckUncompressed(plan.codec(), "ranks read each other's memory, which is no wire"));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  const absl::StatusOr<std::vector<std::string>> addresses = ExchangeAddresses(plan, deadline);
  if (!addresses.ok()) return Failed(addresses.status());
  if (mesh_ != nullptr) {
    const absl::Status connected = mesh_->Connect(*addresses, deadline);
    if (!connected.ok()) return Failed(connected);
  }
  const absl::Status made = MakeEngine(deadline);
  if (!made.ok()) return Failed(made);
  bound_ = true;
  return WindowBuckets(*window_group_, group.rank, window_);
}

absl::Status ShmRingGradientSync::MakeWindow(const Plan& plan) {
  const WorkerGroup& group = options_.group;
  window_group_ = std::make_shared<const WindowGroup>(plan);
  const size_t bytes = static_cast<size_t>(window_group_->Layout(group.rank).bytes());
  GS_ASSIGN_OR_RETURN(window_, Window::Create(bytes));
  if (group.world_size == 1) return absl::OkStatus();
  WindowMeshOptions options;
  options.members = window_group_->MeshMembers();
  options.self = group.rank;
  options.greeting = absl::StrCat(group.Key("shm"), " plan ", plan.fingerprint());
  options.window = window_;
  options.silence = group.timeout;
  options.on_lost = [this](absl::Status status) { Report(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::shared_ptr<WindowMesh> mesh, WindowMesh::Create(std::move(options)));
  MutexLock lock(&mutex_);
  mesh_ = std::move(mesh);
  return failure_;
}

// Returns where each rank's mesh listens. Also tells the others when this rank cannot take part, so
// that nobody waits for it.
absl::StatusOr<std::vector<std::string>> ShmRingGradientSync::ExchangeAddresses(
    const Plan& plan, absl::Time deadline) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status able = host.status();
  if (able.ok()) able = MakeWindow(plan);
  const std::string site = options_.update_site == UpdateSite::kOwner ? "owner" : "worker";
  const std::string mine =
      able.ok() ? absl::StrJoin({site, host->Key(), host->hostname,
                                 mesh_ != nullptr ? mesh_->address() : std::string()},
                                "\n")
                : std::string(able.message());
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel_.AllGather(mine, deadline));
  if (!able.ok()) return able;
  std::vector<std::string> addresses;
  std::vector<std::string> first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(all[rank], '\n');
    if (parts.size() != 4) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " has no shared memory: ", all[rank]));
    }
    if (rank == 0) first = parts;
    if (parts[0] != first[0]) {
      return absl::FailedPreconditionError(
          absl::StrCat("shm options differ: rank 0 has update site ", first[0], "; rank ", rank,
                       " has ", parts[0]));
    }
    if (parts[1] != first[1]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "shm: expected all ranks on one host; rank 0 is on ", first[2], " (", first[1],
          "), rank ", rank, " on ", parts[2], " (", parts[1], "); use --link=grpc"));
    }
    addresses.push_back(parts[3]);
  }
  return addresses;
}

absl::Status ShmRingGradientSync::MakeEngine(absl::Time deadline) {
  ShmEngineOptions options;
  options.group = window_group_;
  options.rank = options_.group.rank;
  options.update_site = options_.update_site;
  for (int rank = 0; rank < options_.group.world_size; ++rank) {
    options.windows.push_back(mesh_ != nullptr ? mesh_->window(rank) : window_);
  }
  options.report = [this](absl::Status status) { Report(std::move(status)); };
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    engine_ = std::make_shared<ShmEngine>(std::move(options));
  }
  // Nobody launches before everybody listens.
  return side_channel_.Barrier(deadline);
}

absl::Status ShmRingGradientSync::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  if (left_)
    return absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " was shut down"));
  if (!bound_) return absl::FailedPreconditionError("expected a successful Bind() first");
  return absl::OkStatus();
}

absl::Status ShmRingGradientSync::BroadcastParameters(absl::Time deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.group.world_size == 1) return absl::OkStatus();
  // Nobody reads rank 0's parameters before they are all there, nor writes any before all have
  // read.
  absl::Status status = side_channel_.Barrier(deadline);
  if (status.ok()) {
    engine_->PullParameters();
    status = side_channel_.Barrier(deadline);
  }
  return status.ok() ? status : Failed(status);
}

SyncHandle ShmRingGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return engine_->Refuse(order);
  steps_done_ = step.step;
  return engine_->Launch(step, bucket);
}

absl::StatusOr<OptimizerState> ShmRingGradientSync::ExportOptimizerState(absl::Time deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  absl::StatusOr<OptimizerState> state =
      CollectState(plan_, engine_->owner(), steps_done_, side_channel_, deadline);
  if (!state.ok()) return Failed(state.status());
  return state;
}

absl::Status ShmRingGradientSync::ImportOptimizerState(const OptimizerState& state, absl::Time) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (bound_) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  engine_->owner().Import(state);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void ShmRingGradientSync::Abort(absl::Status reason) {
  if (reason.ok())
    reason = absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " aborted"));
  Report(std::move(reason));
}

void ShmRingGradientSync::Report(absl::Status status) {
  std::shared_ptr<ShmEngine> engine;
  {
    MutexLock lock(&mutex_);
    engine = engine_;
  }
  if (engine != nullptr) engine->Halt();
  group_error_.Report(std::move(status));
}

// What a collective call failed with, or the group's failure when there is one; from now on the
// group has failed.
absl::Status ShmRingGradientSync::Failed(absl::Status status) {
  Report(status);
  failed_.handle().Wait(absl::Now() + kFarewell).IgnoreError();
  const absl::Status group = group_error_.status();
  return group.ok() ? status : group;
}

void ShmRingGradientSync::OnFailure(absl::Status status) {
  std::shared_ptr<ShmEngine> engine;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    engine = engine_;
    if (mesh_ != nullptr) mesh_->Cancel();
  }
  if (engine != nullptr) engine->Fail(status);
  failed_.Resolve(std::move(status));
}

absl::Status ShmRingGradientSync::Shutdown(absl::Time deadline) {
  GS_RETURN_IF_ERROR(status());
  if (left_) return absl::OkStatus();
  if (!bound_) return absl::FailedPreconditionError("Shutdown: expected a successful Bind() first");
  const absl::Status all_here = side_channel_.Barrier(deadline);
  if (!all_here.ok()) return Failed(all_here);
  group_error_.Leave();
  left_ = true;
  if (mesh_ != nullptr) mesh_->Leave();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateShmRingGradientSync(
    const ShmRingOptions& options) {
  const WorkerGroup& group = options.group;
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank: expected 0..world_size-1, found ",
                                                   group.rank, " of ", group.world_size));
  }
  if (group.world_size > 1 && group.store == nullptr) {
    return absl::InvalidArgumentError("shm: expected a store with more than one rank");
  }
  ShmRingOptions complete = options;
  if (complete.group.store == nullptr) complete.group.store = NewInMemoryStore();
  return std::unique_ptr<GradientSync>(std::make_unique<ShmRingGradientSync>(std::move(complete)));
}

}  // namespace gradsync
