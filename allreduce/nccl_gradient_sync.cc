// Both topologies on GPUs, by NCCL's collectives: a ring is one all-reduce of a bucket, or, with
// update at the owner, a reduce-scatter, the update and an all-gather; parameter servers
// (nccl_topology.h) are ranks that receive all contributions to their chunks and add them in the
// plan's order. What is queued on the stream is watched (nccl_watchdog.h), since a collective
// that waits for a dead rank never ends by itself. docs/internals/nccl.md.

#include "allreduce/nccl_gradient_sync.h"

#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "allreduce/nccl_buckets.h"
#include "allreduce/nccl_communicator.h"
#include "allreduce/nccl_exchange.h"
#include "allreduce/nccl_topology.h"
#include "allreduce/nccl_watchdog.h"
#include "allreduce/nccl_work.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "core/gpu/gpu_resources.h"
#include "core/gpu/kernel_operands.h"
#include "core/plan/codec.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {
namespace {

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

class NcclSync : public SyncEngine {
 public:
  NcclSync(EngineHost& host, NcclOptions options);

  SyncIdentity identity() const override {
    return {options_.owners > 0 ? Backend::kPsOverNccl : Backend::kRingOverNccl};
  }
  UpdateSite update_site() const override { return options_.update_site; }
  std::shared_ptr<GpuApi> gpu() const override { return options_.gpu; }
  std::string Terms() const override {
    return absl::StrCat(
        "NCCL ", options_.nccl->version(), " in a ",
        options_.owners == 0 ? "ring" : absl::StrCat("topology of ", options_.owners, " servers"));
  }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "NCCL adds what it sends, in fp32");
  }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override;
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override;
  absl::Status Import(const OptimizerState& state, Deadline deadline) override;
  WireStats wire_stats() const override { return device_->exchange->wire_stats(); }

  void Halt(const absl::Status& why) override { outcome_->Halt(why); }
  absl::Status Stop(absl::Status status) override;
  absl::Duration StopBound() const override { return options_.abort_bound; }
  void Fail(const absl::Status& status) override;
  absl::Status Drain(Deadline deadline) override;
  void Close() override {
    tasks_.Stop();
    outcome_->Close();
  }

 private:
  // A bucket on its way from Launch() to the communication thread.
  struct Launched {
    StepOptions step;
    std::shared_ptr<NcclWork> work;
  };

  absl::StatusOr<std::unique_ptr<NcclExchange>> NewExchange(const Plan& plan, const Device& device);
  absl::StatusOr<NcclUniqueId> AgreeOnId(Deadline deadline);

  SyncHandle Queue(const SyncPromise& promise, TaskQueue::Task task);
  void ResolveNext(const std::shared_ptr<NcclWork>& work);

  void RunBucket(int bucket);
  void RunBroadcast(int64_t step, const std::shared_ptr<NcclWork>& work);
  absl::Status Complete(int bucket);
  void Stumble(absl::Status status);

  GpuStream stream() const { return device_->stream.get(); }

  const NcclOptions options_;
  const std::shared_ptr<NcclOutcome> outcome_;
  NcclWorkPool works_;
  std::vector<SyncPromiseSeries> promises_;  // by bucket

  // Set by Connect(). The communicator is the first to go: it may have to be aborted.
  DeviceHold hold_;
  NcclCommunicator communicator_;
  Device* device_ = nullptr;  // that of hold_

  // Of the communication thread.
  std::vector<Launched> launched_;  // by bucket; Launch() sets it while the bucket is not queued
  bool stumbled_ = false;

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<SyncPromise> pending_ ABSL_GUARDED_BY(mutex_);  // in the order of the queue
  std::shared_ptr<Device> kept_ ABSL_GUARDED_BY(mutex_);     // that of hold_, for Stop()
  std::shared_ptr<NcclWatchdog> watchdog_ ABSL_GUARDED_BY(mutex_);
  NcclWatchdog* watch_ = nullptr;  // watchdog_, for those who know that it is there

  TaskQueue tasks_;  // last: its thread uses all of the above
};

NcclSync::NcclSync(EngineHost& host, NcclOptions options)
    : SyncEngine(host),
      options_(std::move(options)),
      outcome_(std::make_shared<NcclOutcome>(
          [this](absl::Status status) { this->host().Publish(std::move(status)); })),
      works_(options_.gpu, outcome_),
      hold_{nullptr, options_.abort_bound},
      communicator_(options_.nccl, rank(), world_size()) {}

absl::StatusOr<std::vector<GradBucket>> NcclSync::Connect(const Plan& plan, Deadline deadline) {
  const size_t buckets = plan.buckets().size();
  launched_.resize(buckets);
  for (size_t b = 0; b < buckets; ++b) promises_.emplace_back(absl::StrCat("bucket ", b));
  const auto device = std::make_shared<Device>();
  device->gpu = options_.gpu;
  GS_ASSIGN_OR_RETURN(device->stream, ScopedStream::Create(options_.gpu));
  GS_ASSIGN_OR_RETURN(device->idle, ScopedEvent::Create(options_.gpu));
  GS_ASSIGN_OR_RETURN(device->buckets, NcclBuckets::Create(options_.gpu, options_.nccl, plan));
  GS_ASSIGN_OR_RETURN(device->exchange, NewExchange(plan, *device));
  NcclWatchdogOptions watch;
  watch.group = host().worker();
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
  std::vector<GradBucket> buffers;
  for (const NcclBucket& b : device->buckets->all()) {
    buffers.push_back({DeviceBuffer(*options_.gpu, device->buckets, b.grad, b.numel),
                       DeviceBuffer(*options_.gpu, device->buckets, b.param, b.numel)});
  }
  return buffers;
}

// Rank 0's, to all.
absl::StatusOr<NcclUniqueId> NcclSync::AgreeOnId(Deadline deadline) {
  NcclUniqueId id = {};
  if (rank() == 0) {
    GS_RETURN_IF_ERROR(NcclStatus(options_.nccl->GetUniqueId(&id),
                                  "NCCL at rank 0, ncclGetUniqueId",
                                  options_.nccl->LastError(nullptr)));
  }
  GS_ASSIGN_OR_RETURN(const std::string bytes,
                      side_channel().Broadcast(absl::string_view(id.data(), id.size()), deadline));
  if (bytes.size() != id.size()) {
    return absl::DataLossError(absl::StrCat("NCCL at rank ", rank(), ", the unique id: expected ",
                                            id.size(), " bytes, found ", bytes.size()));
  }
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

absl::StatusOr<std::unique_ptr<NcclExchange>> NcclSync::NewExchange(const Plan& plan,
                                                                    const Device& device) {
  NcclLane lane;
  lane.gpu = options_.gpu;
  lane.buckets = device.buckets;
  lane.stream = device.stream.get();
  lane.communicator = &communicator_;
  lane.rank = rank();
  lane.world_size = world_size();
  lane.timeout = host().worker().timeout;
  std::unique_ptr<NcclTopology> topology;
  if (options_.owners == 0) {
    topology = NewNcclRing(lane, options_.update_site);
  } else {
    GS_ASSIGN_OR_RETURN(topology,
                        CreateNcclServers(lane, plan, options_.owners, options_.update_site));
  }
  return NcclExchange::Create(
      lane, std::move(topology), plan, options_.update_site,
      [outcome = outcome_](absl::Status status) { outcome->Halt(std::move(status)); });
}

SyncHandle NcclSync::Queue(const SyncPromise& promise, TaskQueue::Task task) {
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

void NcclSync::ResolveNext(const std::shared_ptr<NcclWork>& work) {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;  // Fail() has taken them
    promise = std::move(pending_.front());
    pending_.pop_front();
  }
  promise->Resolve(absl::OkStatus(), [work] { return work->JoinComputeStream(); });
}

absl::StatusOr<SyncHandle> NcclSync::Launch(const StepOptions& step, int bucket) {
  GS_ASSIGN_OR_RETURN(std::shared_ptr<NcclWork> work, works_.Take());
  GS_RETURN_IF_ERROR(work->RecordReady());
  launched_[bucket] = {step, std::move(work)};
  return Queue(promises_[bucket].Begin(step.step), [this, bucket] { RunBucket(bucket); });
}

void NcclSync::RunBucket(int bucket) {
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
void NcclSync::Stumble(absl::Status status) {
  stumbled_ = true;
  if (absl::IsCancelled(status)) return;  // interrupted: the failure is known
  watch_->Fail(std::move(status));
}

// All work for the bucket's result is queued.
absl::Status NcclSync::Complete(int bucket) {
  const Launched launched = std::move(launched_[bucket]);
  GS_RETURN_IF_ERROR(launched.work->RecordDone(stream()));
  watch_->Watch(launched.step.step, bucket, launched.work);
  ResolveNext(launched.work);
  return absl::OkStatus();
}

void NcclSync::RunBroadcast(int64_t step, const std::shared_ptr<NcclWork>& work) {
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

absl::Status NcclSync::Broadcast(int64_t steps, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<NcclWork> work, works_.Take());
  GS_RETURN_IF_ERROR(work->RecordReady());
  const SyncPromise promise("the broadcast of parameters");
  const SyncHandle handle = Queue(promise, [this, work, steps] { RunBroadcast(steps, work); });
  GS_RETURN_IF_ERROR(handle.Wait(deadline));
  GS_RETURN_IF_ERROR(watch_->Drain(deadline));
  return side_channel().Barrier(deadline);
}

absl::StatusOr<OptimizerState> NcclSync::Export(int64_t steps, Deadline deadline) {
  GS_RETURN_IF_ERROR(watch_->Drain(deadline));
  return device_->exchange->Export(steps, side_channel(), deadline);
}

absl::Status NcclSync::Import(const OptimizerState& state, Deadline deadline) {
  GS_RETURN_IF_ERROR(watch_->Drain(deadline));
  return device_->exchange->Import(state);
}

// Streams come free by the abort, so it is first.
absl::Status NcclSync::Stop(absl::Status status) {
  std::shared_ptr<Device> device;
  std::shared_ptr<NcclWatchdog> watchdog;
  {
    MutexLock lock(&mutex_);
    device = kept_;
    watchdog = watchdog_;
  }
  if (watchdog != nullptr) watchdog->Stop();
  const absl::Status aborted =
      communicator_.Abort(options_.abort_bound, [device = std::move(device)] {
        if (device != nullptr) device->AwaitIdle();
      });
  // Those who were waited for in vain are not waited for again.
  if (absl::IsDeadlineExceeded(aborted)) hold_.bound = absl::ZeroDuration();
  if (aborted.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", aborted.message()));
}

void NcclSync::Fail(const absl::Status& status) {
  std::deque<SyncPromise> pending;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    pending.swap(pending_);
    kept_ = nullptr;
  }
  outcome_->Settle(status);
  for (const SyncPromise& promise : pending) promise.Resolve(status);
}

absl::Status NcclSync::Drain(Deadline deadline) {
  GS_RETURN_IF_ERROR(watch_->Drain(deadline));
  GS_RETURN_IF_ERROR(communicator_.Close(deadline));
  return side_channel().Barrier(deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateNcclGradientSync(const NcclOptions& options) {
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
  return NewGroupSync(options.group, "nccl",
                      [&](EngineHost& host) { return std::make_unique<NcclSync>(host, options); });
}

}  // namespace gradsync
