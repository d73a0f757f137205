#include "allreduce/shm_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "allreduce/shm_engine.h"
#include "base/deadline.h"
#include "base/host_identity.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "links/window.h"
#include "links/window_group.h"
#include "links/window_mesh.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/launch_order.h"
#include "sync/membership.h"
#include "sync/window_buckets.h"

namespace gradsync {
namespace {

class ShmRingGradientSync : public GradientSync {
 public:
  explicit ShmRingGradientSync(ShmRingOptions options);
  ~ShmRingGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  SyncIdentity identity() const override { return {Backend::kRingOverShm}; }
  absl::Status Settle(Deadline) override { return member_.CheckUsable(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override { return member_.status(); }
  void Abort(absl::Status reason) override { member_.Abort(std::move(reason)); }
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override {
    return engine_ != nullptr ? engine_->wire_stats() : WireStats();
  }

 private:
  absl::Status MakeWindow(const Plan& plan);
  absl::StatusOr<std::vector<std::string>> ExchangeAddresses(const Plan& plan, Deadline deadline);
  absl::Status MakeEngine(Deadline deadline);
  void Halt();
  void OnFailure(absl::Status status);

  const ShmRingOptions options_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  int64_t steps_done_ = 0;  // of the optimizer, under kOwner
  std::shared_ptr<const WindowGroup> window_group_;
  std::shared_ptr<Window> window_;

  // What OnFailure(), which runs on a thread of member_, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WindowMesh> mesh_;   // written once by Bind(), under mutex_; null with one rank
  std::shared_ptr<ShmEngine> engine_;  // the same; destroyed before the mesh

  Membership member_;  // last: its threads use all of the above
};

ShmRingGradientSync::ShmRingGradientSync(ShmRingOptions options)
    : options_(std::move(options)),
      member_(
          options_.group, "shm", [this] { Halt(); },
          [this](absl::Status status) { OnFailure(std::move(status)); }) {}

ShmRingGradientSync::~ShmRingGradientSync() {
  // Others learn why before they see connections end.
  member_.Part();
  // Their threads report to member_, which is destroyed before them.
  if (engine_ != nullptr) engine_->Stop();
  if (mesh_ != nullptr) mesh_->Stop();
}

absl::StatusOr<std::vector<GradBucket>> ShmRingGradientSync::Bind(const Plan& plan,
                                                                  Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.BeginBind(plan, deadline));
  GS_RETURN_IF_ERROR(
      CheckUncompressed(plan.codec(), "ranks read each other's memory, which is no wire"));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  const absl::StatusOr<std::vector<std::string>> addresses = ExchangeAddresses(plan, deadline);
  if (!addresses.ok()) return member_.Failed(addresses.status());
  if (mesh_ != nullptr) {
    const absl::Status connected = mesh_->Connect(*addresses, deadline);
    if (!connected.ok()) return member_.Failed(connected);
  }
  const absl::Status made = MakeEngine(deadline);
  if (!made.ok()) return member_.Failed(made);
  member_.SetBound();
  return WindowBuckets(*window_group_, options_.group.rank, window_);
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
  options.on_lost = [this](absl::Status status) { member_.Report(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::shared_ptr<WindowMesh> mesh, WindowMesh::Create(std::move(options)));
  MutexLock lock(&mutex_);
  mesh_ = std::move(mesh);
  return failure_;
}

// Returns where each rank's mesh listens. Also tells the others when this rank cannot take part, so
// that nobody waits for it.
absl::StatusOr<std::vector<std::string>> ShmRingGradientSync::ExchangeAddresses(const Plan& plan,
                                                                                Deadline deadline) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status able = host.status();
  if (able.ok()) able = MakeWindow(plan);
  const std::string site = options_.update_site == UpdateSite::kOwner ? "owner" : "worker";
  const std::string mine =
      able.ok() ? absl::StrJoin({site, host->Key(), host->hostname,
                                 mesh_ != nullptr ? mesh_->address() : std::string()},
                                "\n")
                : std::string(able.message());
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      member_.side_channel().AllGather(mine, deadline));
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

absl::Status ShmRingGradientSync::MakeEngine(Deadline deadline) {
  ShmEngineOptions options;
  options.group = window_group_;
  options.rank = options_.group.rank;
  options.update_site = options_.update_site;
  for (int rank = 0; rank < options_.group.world_size; ++rank) {
    options.windows.push_back(mesh_ != nullptr ? mesh_->window(rank) : window_);
  }
  options.report = [this](absl::Status status) { member_.Report(std::move(status)); };
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    engine_ = std::make_shared<ShmEngine>(std::move(options));
  }
  // Nobody launches before everybody listens.
  return member_.side_channel().Barrier(deadline);
}

absl::Status ShmRingGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.group.world_size == 1) return absl::OkStatus();
  // Nobody reads rank 0's parameters before they are all there, nor writes any before all have
  // read.
  absl::Status status = member_.side_channel().Barrier(deadline);
  if (status.ok()) {
    engine_->PullParameters();
    status = member_.side_channel().Barrier(deadline);
  }
  return status.ok() ? status : member_.Failed(status);
}

SyncHandle ShmRingGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = member_.CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return engine_->Refuse(order);
  steps_done_ = step.step;
  return launch_order_.Launched(engine_->Launch(step, bucket));
}

absl::StatusOr<OptimizerState> ShmRingGradientSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  absl::StatusOr<OptimizerState> state =
      engine_->owner().Export(steps_done_, member_.side_channel(), deadline);
  if (!state.ok()) return member_.Failed(state.status());
  return state;
}

absl::Status ShmRingGradientSync::ImportOptimizerState(const OptimizerState& state, Deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (member_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(member_.CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  engine_->owner().Import(state);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void ShmRingGradientSync::Halt() {
  std::shared_ptr<ShmEngine> engine;
  {
    MutexLock lock(&mutex_);
    engine = engine_;
  }
  if (engine != nullptr) engine->Halt();
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
}

absl::Status ShmRingGradientSync::Shutdown(Deadline deadline) {
  if (member_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(member_.Leave(deadline));
  if (mesh_ != nullptr) mesh_->Leave();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateShmRingGradientSync(
    const ShmRingOptions& options) {
  ShmRingOptions complete = options;
  GS_ASSIGN_OR_RETURN(complete.group, CheckGroup(options.group, "shm"));
  return std::unique_ptr<GradientSync>(std::make_unique<ShmRingGradientSync>(std::move(complete)));
}

}  // namespace gradsync
