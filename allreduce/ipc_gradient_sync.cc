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
#include "allreduce/ipc_engine.h"
#include "allreduce/ipc_flags.h"
#include "allreduce/ipc_layout.h"
#include "allreduce/ipc_watchdog.h"
#include "allreduce/nccl_work.h"
#include "core/base/deadline.h"
#include "core/base/host_identity.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "core/gpu/gpu_resources.h"
#include "core/group/wire_stats.h"
#include "core/plan/codec.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_mesh.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {
namespace {

constexpr absl::Duration kLookInterval = absl::Microseconds(200);

// Returns whether `condition` came true before the bound.
template <typename Condition>
bool Await(absl::Duration bound, const Condition& condition) {
  for (const Deadline end = Deadline::In(bound); !condition(); absl::SleepFor(kLookInterval)) {
    if (end.passed()) return false;
  }
  return true;
}

class IpcSync : public SyncEngine {
 public:
  IpcSync(EngineHost& host, IpcOptions options)
      : SyncEngine(host),
        options_(std::move(options)),
        outcome_(std::make_shared<NcclOutcome>(
            [this](absl::Status status) { this->host().Publish(std::move(status)); })),
        works_(options_.gpu, outcome_) {}

  SyncIdentity identity() const override {
    return {options_.servers ? Backend::kPsOverCudaIpc : Backend::kRingOverCudaIpc};
  }
  UpdateSite update_site() const override { return options_.update_site; }
  std::shared_ptr<GpuApi> gpu() const override { return options_.gpu; }
  std::string Terms() const override {
    return options_.servers ? absl::StrCat("servers on ", options_.owners, " ranks") : "a ring";
  }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "ranks read each other's memory, which is no wire");
  }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override;
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override;
  absl::Status Import(const OptimizerState& state, Deadline deadline) override;
  WireStats wire_stats() const override { return counter_.stats(); }

  void Halt(const absl::Status& why) override { outcome_->Halt(why); }
  absl::Status Stop(absl::Status status) override;
  absl::Duration StopBound() const override { return options_.hearing + options_.abort_bound; }
  void Fail(const absl::Status& status) override;
  absl::Status Drain(Deadline deadline) override;
  absl::Status Leave(Deadline) override {
    if (mesh_ != nullptr) mesh_->Leave();
    return absl::OkStatus();
  }
  void Close() override;

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
  absl::Status ConnectEngine(const Plan& plan, Deadline deadline);
  std::vector<GradBucket> Buckets() const;
  void GiveUp();

  absl::Status Exchange(const StepOptions& step, int bucket);
  absl::Status Finish(std::shared_ptr<IpcEngine> engine) const;

  const IpcOptions options_;
  uint32_t launches_ = 0;  // exchanges and broadcasts
  std::vector<Open> open_;
  const std::shared_ptr<NcclOutcome> outcome_;
  NcclWorkPool works_;
  std::vector<SyncPromiseSeries> promises_;  // by bucket
  WireCounter counter_;

  // Set by Connect().
  std::shared_ptr<IpcEngine> engine_;
  size_t window_bytes_ = 0;
  std::shared_ptr<Window> window_;
  std::shared_ptr<WindowMesh> mesh_;  // null with one rank
  std::shared_ptr<IpcWatchdog> watchdog_;

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);  // of those in open_
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  // engine_, mesh_ and watchdog_, for Stop().
  std::shared_ptr<IpcEngine> kept_engine_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WindowMesh> kept_mesh_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<IpcWatchdog> kept_watchdog_ ABSL_GUARDED_BY(mutex_);
};

void IpcSync::Close() {
  outcome_->Close();
  if (mesh_ != nullptr) mesh_->Stop();
  // Memory that another process has open must not be freed: where one does not close it, because it
  // was stopped or killed, it is kept until this process ends.
  if (engine_ != nullptr && !Await(options_.hearing, [this] { return engine_->OthersParted(); })) {
    static_cast<void>(new std::shared_ptr<GpuMemory>(engine_->region()));
  }
}

absl::StatusOr<std::vector<GradBucket>> IpcSync::Connect(const Plan& plan, Deadline deadline) {
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    promises_.emplace_back(absl::StrCat("bucket ", b));
  }
  const absl::Status connected = ConnectEngine(plan, deadline);
  if (connected.ok()) return Buckets();
  GiveUp();
  return connected;
}

std::vector<GradBucket> IpcSync::Buckets() const {
  const IpcLayout& layout = engine_->layout();
  std::vector<GradBucket> buckets;
  for (int b = 0; b < layout.buckets(); ++b) {
    const int64_t numel = layout.plan().buckets()[b].numel;
    const std::shared_ptr<GpuMemory>& region = engine_->region();
    const auto flat = [&](size_t offset) {
      return DeviceBuffer(*options_.gpu, region, static_cast<char*>(region->data()) + offset,
                          numel);
    };
    buckets.push_back({flat(layout.grad_offset(b)), flat(layout.param_offset(b))});
  }
  return buckets;
}

absl::Status IpcSync::MakeEngine(const Plan& plan) {
  absl::StatusOr<IpcLayout> layout = IpcLayout::OfRing(plan);
  if (options_.servers) layout = IpcLayout::OfServers(plan, options_.owners);
  GS_RETURN_IF_ERROR(layout.status());
  window_bytes_ = IpcFlags::WindowBytes(layout->MostChunks());
  GS_ASSIGN_OR_RETURN(
      engine_, IpcEngine::Create(options_.gpu, *std::move(layout), rank(), host().worker().Names(),
                                 options_.update_site, [outcome = outcome_](absl::Status status) {
                                   outcome->Halt(std::move(status));
                                 }));
  GS_ASSIGN_OR_RETURN(window_, Window::Create(window_bytes_));
  if (world_size() > 1) GS_RETURN_IF_ERROR(MakeMesh(plan));
  MutexLock lock(&mutex_);
  kept_mesh_ = mesh_;
  return failure_;
}

// Passes the windows, and notices processes that end or stand still.
absl::Status IpcSync::MakeMesh(const Plan& plan) {
  const WorkerGroup& group = host().worker();
  WindowMeshOptions options;
  for (int rank = 0; rank < group.world_size; ++rank) {
    options.members.push_back({group.Name(rank), true, window_bytes_});
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
absl::StatusOr<IpcSync::Peers> IpcSync::ExchangePeers(const Plan& plan, Deadline deadline) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status able = host.status();
  if (able.ok()) able = MakeEngine(plan);
  const std::string mine = able.ok()
                               ? absl::StrJoin({host->Key(), host->hostname,
                                                mesh_ != nullptr ? mesh_->address() : std::string(),
                                                absl::BytesToHexString(engine_->exported())},
                                               "\n")
                               : std::string(able.message());
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel().AllGather(mine, deadline));
  GS_RETURN_IF_ERROR(able);
  const WorkerGroup& worker = IpcSync::host().worker();
  Peers peers;
  std::vector<std::string> first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(all[rank], '\n');
    if (parts.size() != 4) {
      return absl::UnavailableError(
          absl::StrCat(worker.Name(rank), " shares no memory of its GPU: ", all[rank]));
    }
    if (rank == 0) first = parts;
    if (parts[0] != first[0]) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuda_ipc: expected all ranks on one host; ", worker.Name(0), " is on ",
                       first[1], " (", first[0], "), ", worker.Name(rank), " on ", parts[1], " (",
                       parts[0], "); use --link=nccl"));
    }
    peers.addresses.push_back(parts[2]);
    peers.exported.push_back(absl::HexStringToBytes(parts[3]));
  }
  return peers;
}

absl::Status IpcSync::ConnectEngine(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const Peers peers, ExchangePeers(plan, deadline));
  if (mesh_ != nullptr) GS_RETURN_IF_ERROR(mesh_->Connect(peers.addresses, deadline));
  std::vector<std::shared_ptr<Window>> windows;
  for (int rank = 0; rank < world_size(); ++rank) {
    windows.push_back(mesh_ != nullptr ? mesh_->window(rank) : window_);
  }
  GS_RETURN_IF_ERROR(engine_->Connect(std::move(windows), peers.exported));
  IpcWatchdogOptions watch;
  watch.flags = &engine_->flags();
  watch.names = host().worker().Names();
  watch.timeout = host().worker().timeout;
  watchdog_ = std::make_shared<IpcWatchdog>(
      watch, [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); });
  MutexLock lock(&mutex_);
  GS_RETURN_IF_ERROR(failure_);
  kept_engine_ = engine_;
  kept_watchdog_ = watchdog_;
  connected_ = true;
  return absl::OkStatus();
}

// Connect() failed. Where Stop() does not know the engine, nothing was queued, and others that
// are further need not wait.
void IpcSync::GiveUp() {
  {
    MutexLock lock(&mutex_);
    if (connected_) return;
  }
  if (engine_ != nullptr) engine_->Part();
  if (window_ != nullptr) IpcFlags::SetGone(*window_);
}

absl::StatusOr<SyncHandle> IpcSync::Launch(const StepOptions& step, int bucket) {
  // With its gradient the others could complete the exchange, whatever this rank has said.
  if (outcome_->halted()) return absl::CancelledError("this rank has failed");
  GS_RETURN_IF_ERROR(Exchange(step, bucket));
  return promises_[bucket].current().handle();
}

absl::Status IpcSync::Exchange(const StepOptions& step, int bucket) {
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
    counter_.Add(engine_->layout().Traffic(open.bucket, rank()));
    promises_[open.bucket].current().Resolve(
        absl::OkStatus(), [work = open.work] { return work->JoinComputeStream(); });
  }
  open_.clear();
  MutexLock lock(&mutex_);
  pending_.clear();
  return absl::OkStatus();
}

absl::Status IpcSync::Broadcast(int64_t steps, Deadline deadline) {
  if (outcome_->halted()) return absl::CancelledError("this rank has failed");
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<NcclWork> work, works_.Take());
  GS_RETURN_IF_ERROR(work->RecordReady());
  GS_RETURN_IF_ERROR(engine_->Broadcast(++launches_, *work));
  watchdog_->Watch(launches_, absl::StrCat("the broadcast after step ", steps), work);
  counter_.Add(engine_->layout().BroadcastTraffic(rank()));
  GS_RETURN_IF_ERROR(watchdog_->Drain(deadline));
  return side_channel().Barrier(deadline);
}

absl::StatusOr<OptimizerState> IpcSync::Export(int64_t steps, Deadline deadline) {
  GS_RETURN_IF_ERROR(watchdog_->Drain(deadline));
  return engine_->owner()->Export(steps, engine_->stream(), side_channel(), deadline);
}

absl::Status IpcSync::Import(const OptimizerState& state, Deadline deadline) {
  GS_RETURN_IF_ERROR(watchdog_->Drain(deadline));
  return engine_->owner()->Import(state, engine_->stream());
}

// A thread of its own, so that a stream that is not done soon, because the compute stream is not,
// holds up nobody; its memory stays until it is.
absl::Status IpcSync::Finish(std::shared_ptr<IpcEngine> engine) const {
  if (RunBounded(options_.abort_bound, [engine = std::move(engine)] { engine->Finish(); })) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat("the GPU's work is not done after ",
                                                  absl::FormatDuration(options_.abort_bound),
                                                  " and is left to a thread of its own"));
}

absl::Status IpcSync::Stop(absl::Status status) {
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
  if (mesh != nullptr) mesh->Cancel();
  if (watchdog != nullptr) watchdog->Stop();
  if (engine == nullptr) return status;
  engine->Halt();
  Await(options_.hearing, [&] { return engine->OthersHalted(); });
  const absl::Status finished = Finish(std::move(engine));
  if (finished.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", finished.message()));
}

void IpcSync::Fail(const absl::Status& status) {
  std::vector<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    pending.swap(pending_);
    kept_engine_ = nullptr;
  }
  outcome_->Settle(status);
  for (const SyncPromise& promise : pending) promise.Resolve(status);
}

absl::Status IpcSync::Drain(Deadline deadline) {
  GS_RETURN_IF_ERROR(watchdog_->Drain(deadline));
  engine_->Part();
  return side_channel().Barrier(deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateIpcGradientSync(const IpcOptions& options) {
  if (options.gpu == nullptr) {
    return absl::InvalidArgumentError("cuda_ipc: expected a GPU; build with --config=cuda");
  }
  if (options.owners < 0 || options.owners > options.group.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda_ipc: expected 1 to ", options.group.world_size,
                     " owners, or 0 for all ranks, found ", options.owners));
  }
  return NewGroupSync(options.group, "cuda_ipc",
                      [&](EngineHost& host) { return std::make_unique<IpcSync>(host, options); });
}

}  // namespace gradsync
