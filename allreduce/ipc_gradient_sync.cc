#include "allreduce/ipc_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "allreduce/ipc_engine.h"
#include "allreduce/ipc_flags.h"
#include "allreduce/ipc_layout.h"
#include "allreduce/ipc_watchdog.h"
#include "allreduce/nccl_work.h"
#include "base/deadline.h"
#include "base/host_identity.h"
#include "base/mutex.h"
#include "base/run_bounded.h"
#include "base/status_macros.h"
#include "gpu/gpu_resources.h"
#include "links/window.h"
#include "links/window_mesh.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/agree_on_plan.h"
#include "sync/device_buckets.h"
#include "sync/group_error.h"
#include "sync/launch_order.h"
#include "sync/membership.h"
#include "sync/side_channel.h"
#include "sync/sync_life.h"

namespace gradsync {
namespace {

// How long the destructor waits for its farewell to be published; GroupError's own limit is
// shorter.
constexpr absl::Duration kFarewell = absl::Seconds(5);

constexpr absl::Duration kLookInterval = absl::Microseconds(200);

// Returns whether `condition` came true before the bound.
template <typename Condition>
bool Await(absl::Duration bound, const Condition& condition) {
  for (const Deadline end = Deadline::In(bound); !condition(); absl::SleepFor(kLookInterval)) {
    if (end.passed()) return false;
  }
  return true;
}

class IpcGradientSync : public GradientSync {
 public:
  explicit IpcGradientSync(IpcOptions options);
  ~IpcGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  SyncIdentity identity() const override {
    return {options_.servers ? Backend::kPsOverCudaIpc : Backend::kRingOverCudaIpc};
  }
  std::shared_ptr<GpuApi> gpu() const override { return options_.gpu; }
  absl::Status Settle(Deadline) override { return CheckUsable(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override;
  void Abort(absl::Status reason) override;
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override;

 private:
  // A bucket that was launched, and of which not all is queued.
  struct Open {
    uint32_t launch = 0;
    int bucket = 0;
    std::shared_ptr<NcclWork> work;
  };
  // What a rank tells the others of itself.
  struct Peers {
    std::vector<std::string> addresses;  // of its mesh
    std::vector<std::string> exported;   // its memory
  };

  absl::Status MakeEngine(const Plan& plan);
  absl::Status MakeMesh(const Plan& plan);
  absl::StatusOr<Peers> ExchangePeers(const Plan& plan, Deadline deadline);
  absl::Status Connect(const Plan& plan, Deadline deadline);
  void GiveUp();
  absl::Status CheckUsable() const;

  absl::Status Exchange(const StepOptions& step, int bucket);
  SyncHandle Refuse(absl::Status status);
  void Count(const WireStats& stats);

  absl::Status Failed(absl::Status status);
  void OnFailure(absl::Status status);
  absl::Status Finish(std::shared_ptr<IpcEngine> engine) const;

  const IpcOptions options_;
  SideChannel side_channel_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  SyncLife life_;
  uint32_t launches_ = 0;  // exchanges and broadcasts
  std::vector<Open> open_;
  int64_t steps_done_ = 0;
  const std::shared_ptr<NcclOutcome> outcome_;
  NcclWorkPool works_;
  std::vector<SyncPromiseSeries> promises_;  // by bucket

  // Set by Bind().
  std::shared_ptr<IpcEngine> engine_;
  size_t window_bytes_ = 0;
  std::shared_ptr<Window> window_;
  std::shared_ptr<WindowMesh> mesh_;  // null with one rank
  std::shared_ptr<IpcWatchdog> watchdog_;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // For a failure to resolve: of launches that were refused, and of those in open_.
  std::vector<SyncPromise> refused_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);
  WireStats stats_ ABSL_GUARDED_BY(mutex_);
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  // engine_, mesh_ and watchdog_, for OnFailure().
  std::shared_ptr<IpcEngine> kept_engine_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WindowMesh> kept_mesh_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<IpcWatchdog> kept_watchdog_ ABSL_GUARDED_BY(mutex_);
  const SyncPromise failed_;  // resolved when OnFailure() is done

  GroupError group_error_;  // last: its threads use all of the above
};

IpcGradientSync::IpcGradientSync(IpcOptions options)
    : options_(std::move(options)),
      side_channel_(options_.group, "cuda_ipc"),
      life_(options_.group.rank),
      outcome_(std::make_shared<NcclOutcome>(
          [this](absl::Status status) { group_error_.Report(std::move(status)); })),
      works_(options_.gpu, outcome_),
      failed_("the group's failure"),
      group_error_(options_.group, [this](absl::Status status) { OnFailure(std::move(status)); }) {}

IpcGradientSync::~IpcGradientSync() {
  if (!life_.left()) {
    outcome_->Halt(
        absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " left without Shutdown")));
    failed_.handle()
        .Wait(Deadline::In(options_.hearing + options_.abort_bound + kFarewell))
        .IgnoreError();
  }
  outcome_->Close();
  if (mesh_ != nullptr) mesh_->Stop();
  // Memory that another process has open must not be freed: where one does not close it, because it
  // was stopped or killed, it is kept until this process ends.
  if (engine_ != nullptr && !Await(options_.hearing, [this] { return engine_->OthersParted(); })) {
    static_cast<void>(new std::shared_ptr<GpuMemory>(engine_->region()));
  }
}

absl::Status IpcGradientSync::status() const {
  MutexLock lock(&mutex_);
  return failure_;
}

WireStats IpcGradientSync::wire_stats() const {
  MutexLock lock(&mutex_);
  return stats_;
}

void IpcGradientSync::Count(const WireStats& stats) {
  MutexLock lock(&mutex_);
  stats_.tx_bytes += stats.tx_bytes;
  stats_.rx_bytes += stats.rx_bytes;
  stats_.tx_messages += stats.tx_messages;
  stats_.rx_messages += stats.rx_messages;
}

absl::StatusOr<std::vector<GradBucket>> IpcGradientSync::Bind(const Plan& plan, Deadline deadline) {
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(life_.BeginBind());
  if (plan.world_size() != options_.group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ",
                                                   options_.group.world_size));
  }
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel_, plan, deadline));
  GS_RETURN_IF_ERROR(
      CheckUncompressed(plan.codec(), "ranks read each other's memory, which is no wire"));
  plan_ = plan;
  launch_order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    promises_.emplace_back(absl::StrCat("bucket ", b));
  }
  const absl::Status connected = Connect(plan, deadline);
  if (!connected.ok()) {
    GiveUp();
    return Failed(connected);
  }
  life_.SetBound();
  std::vector<GradBucket> buckets;
  for (int b = 0; b < engine_->layout().buckets(); ++b) {
    const int64_t numel = plan.buckets()[b].numel;
    const auto tensor = [&](size_t offset) {
      return TensorOver(*options_.gpu, engine_->region(), offset, numel);
    };
    buckets.push_back(
        {tensor(engine_->layout().grad_offset(b)), tensor(engine_->layout().param_offset(b))});
  }
  return buckets;
}

absl::Status IpcGradientSync::MakeEngine(const Plan& plan) {
  absl::StatusOr<IpcLayout> layout = IpcLayout::OfRing(plan);
  if (options_.servers) layout = IpcLayout::OfServers(plan, options_.owners);
  GS_RETURN_IF_ERROR(layout.status());
  window_bytes_ = IpcFlags::WindowBytes(layout->MostChunks());
  GS_ASSIGN_OR_RETURN(
      engine_, IpcEngine::Create(options_.gpu, *std::move(layout), options_.group.rank,
                                 options_.update_site, [outcome = outcome_](absl::Status status) {
                                   outcome->Halt(std::move(status));
                                 }));
  GS_ASSIGN_OR_RETURN(window_, Window::Create(window_bytes_));
  if (options_.group.world_size > 1) GS_RETURN_IF_ERROR(MakeMesh(plan));
  MutexLock lock(&mutex_);
  kept_mesh_ = mesh_;
  return failure_;
}

// Passes the windows, and notices processes that end or stand still.
absl::Status IpcGradientSync::MakeMesh(const Plan& plan) {
  const WorkerGroup& group = options_.group;
  WindowMeshOptions options;
  for (int rank = 0; rank < group.world_size; ++rank) {
    options.members.push_back({absl::StrCat("rank ", rank), true, window_bytes_});
  }
  options.self = group.rank;
  options.greeting = absl::StrCat(group.Key("cuda_ipc"), " plan ", plan.fingerprint());
  options.window = window_;
  options.silence = group.timeout;
  options.on_lost = [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); };
  GS_ASSIGN_OR_RETURN(mesh_, WindowMesh::Create(std::move(options)));
  return absl::OkStatus();
}

// Also tells the others when this rank cannot take part, so that nobody waits for it.
absl::StatusOr<IpcGradientSync::Peers> IpcGradientSync::ExchangePeers(const Plan& plan,
                                                                      Deadline deadline) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status able = host.status();
  if (able.ok()) able = MakeEngine(plan);
  const std::string who = absl::StrCat(
      options_.servers ? absl::StrCat("servers on ", options_.owners, " ranks") : "a ring",
      " with the update at the ",
      options_.update_site == UpdateSite::kOwner ? "owners" : "workers");
  const std::string mine = able.ok()
                               ? absl::StrJoin({who, host->Key(), host->hostname,
                                                mesh_ != nullptr ? mesh_->address() : std::string(),
                                                absl::BytesToHexString(engine_->exported())},
                                               "\n")
                               : std::string(able.message());
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel_.AllGather(mine, deadline));
  GS_RETURN_IF_ERROR(able);
  Peers peers;
  std::vector<std::string> first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(all[rank], '\n');
    if (parts.size() != 5) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " shares no memory of its GPU: ", all[rank]));
    }
    if (rank == 0) first = parts;
    if (parts[0] != first[0]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuda_ipc: expected ", first[0], " as at rank 0, found ", parts[0], " at rank ", rank));
    }
    if (parts[1] != first[1]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cuda_ipc: expected all ranks on one host; rank 0 is on ", first[2], " (", first[1],
          "), rank ", rank, " on ", parts[2], " (", parts[1], "); use --link=nccl"));
    }
    peers.addresses.push_back(parts[3]);
    peers.exported.push_back(absl::HexStringToBytes(parts[4]));
  }
  return peers;
}

absl::Status IpcGradientSync::Connect(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const Peers peers, ExchangePeers(plan, deadline));
  if (mesh_ != nullptr) GS_RETURN_IF_ERROR(mesh_->Connect(peers.addresses, deadline));
  std::vector<std::shared_ptr<Window>> windows;
  for (int rank = 0; rank < options_.group.world_size; ++rank) {
    windows.push_back(mesh_ != nullptr ? mesh_->window(rank) : window_);
  }
  GS_RETURN_IF_ERROR(engine_->Connect(std::move(windows), peers.exported));
  IpcWatchdogOptions watch;
  watch.flags = &engine_->flags();
  watch.timeout = options_.group.timeout;
  watchdog_ = std::make_shared<IpcWatchdog>(
      watch, [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); });
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(failure_);
    kept_engine_ = engine_;
    kept_watchdog_ = watchdog_;
    connected_ = true;
  }
  // Nobody launches before everybody is connected.
  return side_channel_.Barrier(deadline);
}

// Bind() failed. Where OnFailure() does not know the engine, nothing was queued, and others that
// are further need not wait.
void IpcGradientSync::GiveUp() {
  {
    MutexLock lock(&mutex_);
    if (connected_) return;
  }
  if (engine_ != nullptr) engine_->Part();
  if (window_ != nullptr) IpcFlags::SetGone(*window_);
}

absl::Status IpcGradientSync::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  return life_.CheckUsable();
}

// A handle of the group's failure, which begins here.
SyncHandle IpcGradientSync::Refuse(absl::Status status) {
  const SyncPromise promise("the failure of the group");
  outcome_->Halt(std::move(status));
  MutexLock lock(&mutex_);
  if (failure_.ok()) {
    refused_.push_back(promise);
  } else {
    promise.Resolve(failure_);
  }
  return promise.handle();
}

SyncHandle IpcGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  const absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return Refuse(order);
  // With its gradient the others could complete the exchange, whatever this rank has said.
  if (outcome_->halted()) return Refuse(absl::CancelledError("this rank has failed"));
  const absl::Status queued = Exchange(step, bucket);
  if (!queued.ok()) return Refuse(queued);
  steps_done_ = step.step;
  return launch_order_.Launched(promises_[bucket].current().handle());
}

absl::Status IpcGradientSync::Exchange(const StepOptions& step, int bucket) {
  GS_ASSIGN_OR_RETURN(std::shared_ptr<NcclWork> work, works_.Take());
  GS_RETURN_IF_ERROR(work->RecordReady());
  const SyncPromise& promise = promises_[bucket].Begin(step.step);
  {
    MutexLock lock(&mutex_);
    pending_.push_back(promise);
  }
  open_.push_back({++launches_, bucket, std::move(work)});
  GS_ASSIGN_OR_RETURN(const bool queued,
                      engine_->Exchange(launches_, bucket, step, open_.back().work));
  if (!queued) return absl::OkStatus();
  for (Open& open : open_) {
    watchdog_->Watch(open.launch, absl::StrCat("bucket ", open.bucket, " of step ", step.step),
                     open.work);
    Count(engine_->layout().Traffic(open.bucket, options_.group.rank));
    promises_[open.bucket].current().Resolve(
        absl::OkStatus(), [work = open.work] { return work->JoinComputeStream(); });
  }
  open_.clear();
  MutexLock lock(&mutex_);
  pending_.clear();
  return absl::OkStatus();
}

absl::Status IpcGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  const absl::Status done = [&] {
    if (outcome_->halted()) return absl::CancelledError("this rank has failed");
    GS_ASSIGN_OR_RETURN(const std::shared_ptr<NcclWork> work, works_.Take());
    GS_RETURN_IF_ERROR(work->RecordReady());
    GS_RETURN_IF_ERROR(engine_->Broadcast(++launches_, *work));
    watchdog_->Watch(launches_, absl::StrCat("the broadcast after step ", steps_done_), work);
    Count(engine_->layout().BroadcastTraffic(options_.group.rank));
    GS_RETURN_IF_ERROR(watchdog_->Drain(deadline));
    return side_channel_.Barrier(deadline);
  }();
  return done.ok() ? done : Failed(done);
}

absl::StatusOr<OptimizerState> IpcGradientSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  const absl::Status drained = watchdog_->Drain(deadline);
  if (!drained.ok()) return Failed(drained);
  absl::StatusOr<OptimizerState> state =
      engine_->owner()->Export(steps_done_, engine_->stream(), side_channel_, deadline);
  if (!state.ok()) return Failed(state.status());
  return state;
}

absl::Status IpcGradientSync::ImportOptimizerState(const OptimizerState& state, Deadline deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (life_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  absl::Status imported = watchdog_->Drain(deadline);
  if (imported.ok()) imported = engine_->owner()->Import(state, engine_->stream());
  if (!imported.ok()) return Failed(imported);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void IpcGradientSync::Abort(absl::Status reason) {
  outcome_->Halt(life_.ReasonOf(std::move(reason)));
}

absl::Status IpcGradientSync::Failed(absl::Status status) {
  outcome_->Halt(status);
  failed_.handle()
      .Wait(Deadline::In(options_.hearing + options_.abort_bound + kFarewell))
      .IgnoreError();
  const absl::Status group = this->status();
  return group.ok() ? status : group;
}

// A thread of its own, so that a stream that is not done soon, because the compute stream is not,
// holds up nobody; its memory stays until it is.
absl::Status IpcGradientSync::Finish(std::shared_ptr<IpcEngine> engine) const {
  if (RunBounded(options_.abort_bound, [engine = std::move(engine)] { engine->Finish(); })) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat("the GPU's work is not done after ",
                                                  absl::FormatDuration(options_.abort_bound),
                                                  " and is left to a thread of its own"));
}

// What was published first ends everything here.
void IpcGradientSync::OnFailure(absl::Status status) {
  std::shared_ptr<IpcEngine> engine;
  std::shared_ptr<WindowMesh> mesh;
  std::shared_ptr<IpcWatchdog> watchdog;
  {
    MutexLock lock(&mutex_);
    engine = kept_engine_;
    mesh = kept_mesh_;
    watchdog = kept_watchdog_;
    if (engine == nullptr) failure_ = status;  // so that Connect() goes no further
  }
  outcome_->Halt(status);  // before streams come free and somebody takes that for success
  if (mesh != nullptr) mesh->Cancel();
  if (watchdog != nullptr) watchdog->Stop();
  if (engine != nullptr) {
    engine->Halt();
    Await(options_.hearing, [&] { return engine->OthersHalted(); });
    const absl::Status finished = Finish(std::move(engine));
    if (!finished.ok()) {
      status =
          absl::Status(status.code(), absl::StrCat(status.message(), "; ", finished.message()));
    }
  }
  std::vector<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    pending.swap(pending_);
    pending.insert(pending.end(), refused_.begin(), refused_.end());
    refused_.clear();
    kept_engine_ = nullptr;
  }
  outcome_->Settle(status);
  for (const SyncPromise& promise : pending) promise.Resolve(status);
  failed_.Resolve(std::move(status));
}

absl::Status IpcGradientSync::Shutdown(Deadline deadline) {
  if (life_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckUsable());
  absl::Status left = side_channel_.Barrier(deadline);
  if (left.ok()) left = watchdog_->Drain(deadline);
  if (left.ok()) {
    engine_->Part();
    left = side_channel_.Barrier(deadline);
  }
  if (!left.ok()) return Failed(left);
  group_error_.Leave();
  if (mesh_ != nullptr) mesh_->Leave();
  life_.SetLeft();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateIpcGradientSync(const IpcOptions& options) {
  IpcOptions complete = options;
  GS_ASSIGN_OR_RETURN(complete.group, CheckGroup(options.group, "cuda_ipc"));
  if (options.gpu == nullptr) {
    return absl::InvalidArgumentError("cuda_ipc: expected a GPU; build with --config=cuda");
  }
  if (options.owners < 0 || options.owners > complete.group.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda_ipc: expected 1 to ", complete.group.world_size,
                     " owners, or 0 for all ranks, found ", options.owners));
  }
  return std::unique_ptr<GradientSync>(std::make_unique<IpcGradientSync>(std::move(complete)));
}

}  // namespace gradsync
