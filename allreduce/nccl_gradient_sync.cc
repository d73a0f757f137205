#include "allreduce/nccl_gradient_sync.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "allreduce/nccl_buckets.h"
#include "allreduce/nccl_communicator.h"
#include "allreduce/nccl_exchange.h"
#include "allreduce/nccl_servers.h"
#include "allreduce/nccl_topology.h"
#include "allreduce/nccl_watchdog.h"
#include "allreduce/nccl_work.h"
#include "allreduce/task_queue.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/run_bounded.h"
#include "base/status_macros.h"
#include "gpu/gpu_resources.h"
#include "gpu/kernel_pieces.h"
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

// What queued work uses. Nothing in it waits for that work when it goes, so whoever holds it calls
// AwaitIdle() before letting go, and keeps it for as long as that takes.
struct Device {
  std::shared_ptr<GpuApi> gpu;
  std::shared_ptr<const NcclBuckets> buckets;
  std::unique_ptr<NcclExchange> exchange;
  ScopedStream stream;
  ScopedEvent idle;

  // Blocks until the stream has done what it has now. Thread-safe.
  void AwaitIdle() const {
    if (gpu->Record(idle.get(), stream.get()).ok() && gpu->Synchronize(idle.get()).ok()) return;
    // A device that met an error runs nothing any more, and says so again.
    gpu->SynchronizeDevice().IgnoreError();
  }
};

// A backend's hold on its device: gone after everybody who queues work, and lets go within `bound`,
// or leaves that to a thread of its own: a stream may be waiting for what never ends.
struct DeviceHold {
  ~DeviceHold() {
    if (device == nullptr) return;
    RunBounded(bound, [device = std::move(device)] { device->AwaitIdle(); });
  }

  std::shared_ptr<Device> device;
  absl::Duration bound;
};

at::Tensor BucketTensor(float* data, int64_t numel, const GpuApi& gpu,
                        std::shared_ptr<const NcclBuckets> memory) {
  return at::from_blob(
      data, {numel}, [memory = std::move(memory)](void*) {},
      at::TensorOptions().dtype(at::kFloat).device(TensorDevice(&gpu)));
}

class NcclGradientSync : public GradientSync {
 public:
  explicit NcclGradientSync(NcclOptions options);
  ~NcclGradientSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  SyncIdentity identity() const override {
    return {options_.owners > 0 ? Backend::kPsOverNccl : Backend::kRingOverNccl};
  }
  std::shared_ptr<GpuApi> gpu() const override { return options_.gpu; }
  absl::Status Settle(Deadline) override { return CheckUsable(); }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override;
  void Abort(absl::Status reason) override;
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override {
    return life_.bound() ? device_->exchange->wire_stats() : WireStats();
  }

 private:
  // A bucket on its way from Launch() to the communication thread.
  struct Launched {
    StepOptions step;
    std::shared_ptr<NcclWork> work;
  };

  absl::Status Connect(Deadline deadline);
  absl::StatusOr<std::unique_ptr<NcclExchange>> NewExchange(const Device& device);
  absl::Status AgreeOnLibrary(Deadline deadline);
  absl::StatusOr<NcclUniqueId> AgreeOnId(Deadline deadline);
  absl::Status CheckUsable() const;

  SyncHandle Queue(const SyncPromise& promise, TaskQueue::Task task);
  SyncHandle Refuse(const SyncPromise& promise, absl::Status status);
  void ResolveNext(const std::shared_ptr<NcclWork>& work);

  void RunBucket(int bucket);
  void RunBroadcast(int64_t step, const std::shared_ptr<NcclWork>& work);
  absl::Status Complete(int bucket);
  void Stumble(absl::Status status);

  absl::Status Failed(absl::Status status);
  void OnFailure(absl::Status status);

  GpuStream stream() const { return device_->stream.get(); }
  std::string Name(int bucket, const StepOptions& step) const {
    return absl::StrCat("bucket ", bucket, " of step ", step.step);
  }

  const NcclOptions options_;
  SideChannel side_channel_;
  Plan plan_;
  LaunchOrder launch_order_{0};
  SyncLife life_;
  int64_t steps_done_ = 0;
  const std::shared_ptr<NcclOutcome> outcome_;
  NcclWorkPool works_;
  std::vector<SyncPromiseSeries> promises_;  // by bucket

  // Set by Bind(). The communicator is the first to go: it may have to be aborted.
  DeviceHold hold_;
  NcclCommunicator communicator_;
  Device* device_ = nullptr;  // that of hold_

  // Of the communication thread.
  std::vector<Launched> launched_;  // by bucket; Launch() sets it while the bucket is not queued
  bool stumbled_ = false;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);  // in the order of the queue
  std::shared_ptr<Device> kept_ ABSL_GUARDED_BY(mutex_);     // that of hold_, for OnFailure()
  std::shared_ptr<NcclWatchdog> watchdog_ ABSL_GUARDED_BY(mutex_);
  NcclWatchdog* watch_ = nullptr;  // watchdog_, for those who know that it is there
  const SyncPromise failed_;       // resolved when OnFailure() is done

  GroupError group_error_;
  TaskQueue tasks_;  // last: its thread uses all of the above
};

NcclGradientSync::NcclGradientSync(NcclOptions options)
    : options_(std::move(options)),
      side_channel_(options_.group, "nccl"),
      life_(options_.group.rank),
      outcome_(std::make_shared<NcclOutcome>(
          [this](absl::Status status) { group_error_.Report(std::move(status)); })),
      works_(options_.gpu, outcome_),
      hold_{nullptr, options_.abort_bound},
      communicator_(options_.nccl, options_.group.rank, options_.group.world_size),
      failed_("the group's failure"),
      group_error_(options_.group, [this](absl::Status status) { OnFailure(std::move(status)); }) {}

NcclGradientSync::~NcclGradientSync() {
  if (!life_.left()) {
    outcome_->Halt(
        absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " left without Shutdown")));
    failed_.handle().Wait(Deadline::In(options_.abort_bound + kFarewell)).IgnoreError();
  }
  tasks_.Stop();
  outcome_->Close();
}

absl::Status NcclGradientSync::status() const {
  MutexLock lock(&mutex_);
  return failure_;
}

absl::StatusOr<std::vector<GradBucket>> NcclGradientSync::Bind(const Plan& plan,
                                                               Deadline deadline) {
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(life_.BeginBind());
  if (plan.world_size() != options_.group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ",
                                                   options_.group.world_size));
  }
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel_, plan, deadline));
  GS_RETURN_IF_ERROR(CheckUncompressed(plan.codec(), "NCCL adds what it sends, in fp32"));
  plan_ = plan;
  const size_t buckets = plan.buckets().size();
  launch_order_ = LaunchOrder(static_cast<int>(buckets));
  launched_.resize(buckets);
  for (size_t b = 0; b < buckets; ++b) promises_.emplace_back(absl::StrCat("bucket ", b));
  GS_RETURN_IF_ERROR(AgreeOnLibrary(deadline));
  const absl::Status connected = Connect(deadline);
  if (!connected.ok()) return Failed(connected);
  life_.SetBound();
  std::vector<GradBucket> tensors;
  for (const NcclBucket& b : device_->buckets->all()) {
    tensors.push_back({BucketTensor(b.grad, b.numel, *options_.gpu, device_->buckets),
                       BucketTensor(b.param, b.numel, *options_.gpu, device_->buckets)});
  }
  return tensors;
}

absl::Status NcclGradientSync::AgreeOnLibrary(Deadline deadline) {
  const std::string own = absl::StrCat(
      "NCCL ", options_.nccl->version(), " in a ",
      options_.owners == 0 ? "ring" : absl::StrCat("topology of ", options_.owners, " servers"),
      " with the update at the ",
      options_.update_site == UpdateSite::kOwner ? "owners" : "workers");
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel_.AllGather(own, deadline));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("expected ", all[0], " as at rank 0, found ", all[rank], " at rank ", rank));
  }
  return absl::OkStatus();
}

// Rank 0's, to all.
absl::StatusOr<NcclUniqueId> NcclGradientSync::AgreeOnId(Deadline deadline) {
  NcclUniqueId id = {};
  if (options_.group.rank == 0) {
    GS_RETURN_IF_ERROR(NcclStatus(options_.nccl->GetUniqueId(&id),
                                  "NCCL at rank 0, ncclGetUniqueId",
                                  options_.nccl->LastError(nullptr)));
  }
  GS_ASSIGN_OR_RETURN(const std::string bytes,
                      side_channel_.Broadcast(absl::string_view(id.data(), id.size()), deadline));
  if (bytes.size() != id.size()) {
    return absl::DataLossError(absl::StrCat("NCCL at rank ", options_.group.rank,
                                            ", the unique id: expected ", id.size(),
                                            " bytes, found ", bytes.size()));
  }
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

absl::Status NcclGradientSync::Connect(Deadline deadline) {
  const WorkerGroup& group = options_.group;
  const auto device = std::make_shared<Device>();
  device->gpu = options_.gpu;
  GS_ASSIGN_OR_RETURN(device->stream, ScopedStream::Create(options_.gpu));
  GS_ASSIGN_OR_RETURN(device->idle, ScopedEvent::Create(options_.gpu));
  GS_ASSIGN_OR_RETURN(device->buckets, NcclBuckets::Create(options_.gpu, options_.nccl, plan_));
  GS_ASSIGN_OR_RETURN(device->exchange, NewExchange(*device));
  NcclWatchdogOptions watch;
  watch.group = group;
  watch.communicator = &communicator_;
  watch.grace = options_.grace;
  const auto watchdog = std::make_shared<NcclWatchdog>(
      watch, [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); });
  hold_.device = device;
  device_ = device.get();
  watch_ = watchdog.get();
  {
    MutexLock lock(&mutex_);
    kept_ = device;
    watchdog_ = watchdog;
  }
  GS_ASSIGN_OR_RETURN(const NcclUniqueId id, AgreeOnId(deadline));
  GS_RETURN_IF_ERROR(communicator_.Init(id, deadline));
  GS_RETURN_IF_ERROR(communicator_.Register(device->buckets->memory(), device->buckets->bytes()));
  // Nobody launches before everybody is connected.
  return side_channel_.Barrier(deadline);
}

absl::StatusOr<std::unique_ptr<NcclExchange>> NcclGradientSync::NewExchange(const Device& device) {
  NcclLane lane;
  lane.gpu = options_.gpu;
  lane.buckets = device.buckets;
  lane.stream = device.stream.get();
  lane.communicator = &communicator_;
  lane.rank = options_.group.rank;
  lane.world_size = options_.group.world_size;
  lane.timeout = options_.group.timeout;
  std::unique_ptr<NcclTopology> topology;
  if (options_.owners == 0) {
    topology = NewNcclRing(lane, options_.update_site);
  } else {
    GS_ASSIGN_OR_RETURN(topology,
                        CreateNcclServers(lane, plan_, options_.owners, options_.update_site));
  }
  return NcclExchange::Create(
      lane, std::move(topology), plan_, options_.update_site,
      [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); });
}

absl::Status NcclGradientSync::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  return life_.CheckUsable();
}

SyncHandle NcclGradientSync::Queue(const SyncPromise& promise, TaskQueue::Task task) {
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) {
      promise.Resolve(failure_);
      return promise.handle();
    }
    pending_.push_back(promise);
  }
  tasks_.Add(std::move(task));
  return promise.handle();
}

// A handle of the group's failure, which begins here.
SyncHandle NcclGradientSync::Refuse(const SyncPromise& promise, absl::Status status) {
  outcome_->Halt(std::move(status));
  return Queue(promise, [] {});
}

void NcclGradientSync::ResolveNext(const std::shared_ptr<NcclWork>& work) {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;  // OnFailure() has taken them
    promise = std::move(pending_.front());
    pending_.pop_front();
  }
  promise->Resolve(absl::OkStatus(), [work] { return work->JoinComputeStream(); });
}

SyncHandle NcclGradientSync::Launch(const StepOptions& step, int bucket) {
  const absl::Status usable = CheckUsable();
  if (!usable.ok()) return ResolvedHandle(usable);
  absl::Status order = launch_order_.Check(step, bucket);
  if (!order.ok()) return Refuse(SyncPromise(Name(bucket, step)), order);
  const SyncPromise& promise = promises_[bucket].Begin(step.step);
  absl::StatusOr<std::shared_ptr<NcclWork>> work = works_.Take();
  if (!work.ok()) return Refuse(promise, work.status());
  const absl::Status recorded = (*work)->RecordReady();
  if (!recorded.ok()) return Refuse(promise, recorded);
  steps_done_ = step.step;
  launched_[bucket] = {step, *std::move(work)};
  return launch_order_.Launched(Queue(promise, [this, bucket] { RunBucket(bucket); }));
}

void NcclGradientSync::RunBucket(int bucket) {
  if (stumbled_ || outcome_->halted()) return;
  const StepOptions step = launched_[bucket].step;
  watch_->Launched(step.step, bucket);
  absl::Status status = launched_[bucket].work->StartAfterReady(stream());
  if (status.ok()) {
    status = device_->exchange->Run(step, bucket, [this](int b) { return Complete(b); });
  }
  if (!status.ok()) Stumble(status);
}

// Nothing is given to NCCL any more. Who is to blame is for the watchdog to find out.
void NcclGradientSync::Stumble(absl::Status status) {
  stumbled_ = true;
  if (absl::IsCancelled(status)) return;  // interrupted: the failure is known
  watch_->Fail(std::move(status));
}

// All work for the bucket's result is queued.
absl::Status NcclGradientSync::Complete(int bucket) {
  const Launched launched = std::move(launched_[bucket]);
  GS_RETURN_IF_ERROR(launched.work->RecordDone(stream()));
  watch_->Watch(launched.step.step, bucket, launched.work);
  ResolveNext(launched.work);
  return absl::OkStatus();
}

void NcclGradientSync::RunBroadcast(int64_t step, const std::shared_ptr<NcclWork>& work) {
  if (stumbled_ || outcome_->halted()) return;
  watch_->Launched(step, NcclWatchdog::kBroadcast);
  const absl::Status status = [&] {
    GS_RETURN_IF_ERROR(work->StartAfterReady(stream()));
    GS_RETURN_IF_ERROR(device_->exchange->BroadcastParameters());
    GS_RETURN_IF_ERROR(work->RecordDone(stream()));
    watch_->Watch(step, NcclWatchdog::kBroadcast, work);
    ResolveNext(work);
    return absl::OkStatus();
  }();
  if (!status.ok()) Stumble(status);
}

absl::Status NcclGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  const SyncPromise promise("the broadcast of parameters");
  absl::StatusOr<std::shared_ptr<NcclWork>> work = works_.Take();
  if (!work.ok()) return Failed(work.status());
  absl::Status status = (*work)->RecordReady();
  if (!status.ok()) return Failed(status);
  const SyncHandle handle =
      Queue(promise, [this, work = *work, step = steps_done_] { RunBroadcast(step, work); });
  status = handle.Wait(deadline);
  if (status.ok()) status = watch_->Drain(deadline);
  if (status.ok()) status = side_channel_.Barrier(deadline);
  return status.ok() ? status : Failed(status);
}

absl::StatusOr<OptimizerState> NcclGradientSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return OptimizerState();
  absl::Status drained = watch_->Drain(deadline);
  if (!drained.ok()) return Failed(drained);
  absl::StatusOr<OptimizerState> state =
      device_->exchange->Export(steps_done_, side_channel_, deadline);
  if (!state.ok()) return Failed(state.status());
  return state;
}

absl::Status NcclGradientSync::ImportOptimizerState(const OptimizerState& state,
                                                    Deadline deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (life_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  if (options_.update_site == UpdateSite::kWorker) return absl::OkStatus();
  absl::Status imported = watch_->Drain(deadline);
  if (imported.ok()) imported = device_->exchange->Import(state);
  if (!imported.ok()) return Failed(imported);
  steps_done_ = state.step;
  return absl::OkStatus();
}

void NcclGradientSync::Abort(absl::Status reason) {
  outcome_->Halt(life_.ReasonOf(std::move(reason)));
}

absl::Status NcclGradientSync::Failed(absl::Status status) {
  outcome_->Halt(status);
  failed_.handle().Wait(Deadline::In(options_.abort_bound + kFarewell)).IgnoreError();
  const absl::Status group = this->status();
  return group.ok() ? status : group;
}

// What was published first ends everything here. Streams come free by the abort, so it is first.
void NcclGradientSync::OnFailure(absl::Status status) {
  std::shared_ptr<Device> device;
  std::shared_ptr<NcclWatchdog> watchdog;
  {
    MutexLock lock(&mutex_);
    device = kept_;
    watchdog = watchdog_;
  }
  outcome_->Halt(status);  // before streams come free and somebody takes that for success
  if (watchdog != nullptr) watchdog->Stop();
  const absl::Status aborted =
      communicator_.Abort(options_.abort_bound, [device = std::move(device)] {
        if (device != nullptr) device->AwaitIdle();
      });
  // Those who were waited for in vain are not waited for again.
  if (absl::IsDeadlineExceeded(aborted)) hold_.bound = absl::ZeroDuration();
  if (!aborted.ok()) {
    status = absl::Status(status.code(), absl::StrCat(status.message(), "; ", aborted.message()));
  }
  std::deque<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    pending.swap(pending_);
    kept_ = nullptr;
  }
  outcome_->Settle(status);
  for (const SyncPromise& promise : pending) promise.Resolve(status);
  failed_.Resolve(std::move(status));
}

absl::Status NcclGradientSync::Shutdown(Deadline deadline) {
  if (life_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckUsable());
  absl::Status left = side_channel_.Barrier(deadline);
  if (left.ok()) left = watch_->Drain(deadline);
  if (left.ok()) left = communicator_.Close(deadline);
  if (left.ok()) left = side_channel_.Barrier(deadline);
  if (!left.ok()) return Failed(left);
  group_error_.Leave();
  life_.SetLeft();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateNcclGradientSync(const NcclOptions& options) {
  NcclOptions complete = options;
  GS_ASSIGN_OR_RETURN(complete.group, CheckGroup(options.group, "nccl"));
  const int ranks = options.group.world_size;
  if (options.owners < 0 || options.owners > ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nccl: expected 0 to ", ranks, " owners among as many ranks, found ", options.owners));
  }
  if (options.owners > 0 && ranks > static_cast<int>(kMostFoldOperands)) {
    return absl::InvalidArgumentError(absl::StrCat("nccl: expected at most ", kMostFoldOperands,
                                                   " ranks with owners, found ", ranks));
  }
  if (options.gpu == nullptr || options.nccl == nullptr) {
    return absl::InvalidArgumentError("nccl: expected a GPU and NCCL; build with --config=cuda");
  }
  return std::unique_ptr<GradientSync>(std::make_unique<NcclGradientSync>(std::move(complete)));
}

}  // namespace gradsync
