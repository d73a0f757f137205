#include "core/sync/staged_sync.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/sharding.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"

namespace gradsync {
namespace {

// How often somebody who waits for a copy looks whether it can still come.
constexpr absl::Duration kLook = absl::Seconds(1);

// Longest wait for the group to agree on its first failure.
constexpr absl::Duration kAgreement = absl::Seconds(10);

// No bucket has this number: launching it fails, with the status of the group once that is known.
constexpr int kNoBucket = -1;

constexpr uintptr_t kPage = 4096;

// The pages under the buckets, in pieces that do not touch.
std::vector<std::pair<uintptr_t, uintptr_t>> PagesUnder(const std::vector<BucketMemory>& memory) {
  std::vector<std::pair<uintptr_t, uintptr_t>> pages;
  for (const BucketMemory& bucket : memory) {
    for (const float* flat : {bucket.grad, bucket.param}) {
      if (bucket.numel == 0) continue;
      const uintptr_t begin = reinterpret_cast<uintptr_t>(flat);
      const uintptr_t end = begin + static_cast<uintptr_t>(bucket.numel) * sizeof(float);
      pages.emplace_back(begin / kPage * kPage, (end + kPage - 1) / kPage * kPage);
    }
  }
  std::sort(pages.begin(), pages.end());
  std::vector<std::pair<uintptr_t, uintptr_t>> joined;
  for (const auto& [begin, end] : pages) {
    if (joined.empty() || begin > joined.back().second) {
      joined.emplace_back(begin, end);
    } else {
      joined.back().second = std::max(joined.back().second, end);
    }
  }
  return joined;
}

// How handles, which may outlive the sync, end its group.
struct Alarm {
  Mutex mutex;
  std::function<void(absl::Status)> ring ABSL_GUARDED_BY(mutex);  // null: the sync is gone
};

// The event of a copy to the device, which handles may wait for when the sync is gone.
struct CopyEvent {
  // Makes the calling thread's compute stream wait.
  absl::Status Join() const {
    absl::Status joined = gpu->StreamWait(gpu->ComputeStream(), event.get());
    MutexLock lock(&alarm->mutex);
    if (!joined.ok() && alarm->ring != nullptr) alarm->ring(joined);
    return joined;
  }

  std::shared_ptr<GpuApi> gpu;
  ScopedEvent event;
  std::shared_ptr<Alarm> alarm;
};

class StagedSync : public GradientSync {
 public:
  StagedSync(std::unique_ptr<GradientSync> host, std::shared_ptr<GpuApi> gpu)
      : gpu_(std::move(gpu)), host_(std::move(host)), order_(0), alarm_(std::make_shared<Alarm>()) {
    {
      MutexLock lock(&alarm_->mutex);
      alarm_->ring = [this](absl::Status status) { Abort(std::move(status)); };
    }
    launcher_ = std::thread([this] { LaunchLoop(); });
    finishers_[kLaunch] = std::thread([this] { FinishLoop(kLaunch); });
    finishers_[kGather] = std::thread([this] { FinishLoop(kGather); });
  }
  ~StagedSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  SyncHandle Gather(int bucket) override;
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  UpdateSite update_site() const override { return host_->update_site(); }
  SyncIdentity identity() const override { return host_->identity(); }
  std::shared_ptr<GpuApi> gpu() const override { return gpu_; }
  absl::Status Settle(Deadline deadline) override;
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::StatusOr<RankState> ExportRankState() override;
  absl::Status ImportRankState(const RankState& state) override;
  absl::Status status() const override { return host_->status(); }
  void Abort(absl::Status reason) override;
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override;
  Staleness staleness() const override;

 private:
  struct Bucket {
    explicit Bucket(int index) : promises(absl::StrCat("bucket ", index)) {}

    BucketMemory device;
    BucketMemory host;
    ScopedEvent ready;              // on the compute stream: the gradient is complete, or what lies
                                    // where parameters are gathered is no longer used
    ScopedEvent down;               // the gradient is on the host
    std::shared_ptr<CopyEvent> up;  // the result, or what was gathered, is on the device
    SyncPromiseSeries promises;
  };

  // What the host is asked for. Both have a copy that the host waits for: a launch that of its
  // gradient to the host, a gather that of what was gathered to the same memory before, to the GPU.
  enum Kind { kLaunch, kGather, kKinds };

  // On its way through the threads.
  struct Request {
    Kind kind;
    StepOptions step;  // of a launch
    int bucket;
    SyncPromise promise;
  };
  struct Asked {
    Request request;
    SyncHandle handle;
  };

  // The number of a gather, from 1 on.
  struct Gathered {
    int64_t number = 0;
    int bucket = 0;
  };

  absl::Status Allocate(const Plan& plan, const std::vector<GradBucket>& host_buckets);
  bool sharded() const { return slots_.parameters > 0; }
  SyncHandle Queue(Request request);
  absl::Status QueueGradientDown(Bucket& bucket);
  absl::Status QueueCopyDown(Bucket& bucket, float* BucketMemory::*what);
  absl::Status QueueCopyUp(Bucket& bucket);
  absl::Status QueueGathered(Bucket& bucket);
  absl::Status CountCopy(Kind kind, const ScopedStream& stream);
  absl::Status CopyParametersUp();
  absl::Status CopyParametersDown();
  absl::Status FailGroup(const absl::Status& status);
  void Drain(const ScopedStream& stream);

  void LaunchLoop();
  bool AwaitTurn(const Request& request);
  bool AwaitCopies(Kind kind, int64_t count, const ScopedEvent& last);
  SyncHandle LaunchOnHost(const StepOptions& step, int bucket);
  SyncHandle GatherOnHost(int bucket);
  void FinishLoop(Kind kind);
  void Finish(const Asked& asked);

  const std::shared_ptr<GpuApi> gpu_;

  // Serialises the calls to host_ other than status() and Abort(): the launcher makes some.
  mutable Mutex host_mutex_;
  const std::unique_ptr<GradientSync> host_;

  // The caller's.
  LaunchOrder order_;
  bool bound_ = false;
  bool left_ = false;

  const std::shared_ptr<Alarm> alarm_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::deque<Asked> asked_[kKinds] ABSL_GUARDED_BY(mutex_);
  bool used_ ABSL_GUARDED_BY(mutex_) = false;                // there was a request
  int64_t copies_[kKinds] ABSL_GUARDED_BY(mutex_) = {0, 0};  // ended, in the order of requests
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // copies need not be waited for any more
  bool launcher_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  // The launcher's.
  int64_t launches_ = 0;
  int64_t gathers_ = 0;
  std::vector<Gathered> newest_;  // by slot of parameters

  // Made by Bind(). Streams and events go first, then pins, then memory.
  BucketSlots slots_;
  std::vector<GradBucket> host_buckets_;
  std::vector<GradBucket> device_buckets_;
  std::vector<RegisteredMemory> pinned_;
  ScopedStream down_stream_;
  ScopedStream up_stream_;
  ScopedEvent end_;
  std::vector<std::unique_ptr<Bucket>> buckets_;

  std::thread launcher_;  // last: use all of the above
  std::thread finishers_[kKinds];
};

StagedSync::~StagedSync() {
  bool busy;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    busy = used_;
    changed_.SignalAll();
  }
  if (busy && !left_) Abort(absl::CancelledError("this rank left without Shutdown"));
  launcher_.join();
  for (std::thread& finisher : finishers_) finisher.join();
  {
    MutexLock lock(&alarm_->mutex);
    alarm_->ring = nullptr;
  }
  Drain(down_stream_);
  Drain(up_stream_);
}

void StagedSync::Drain(const ScopedStream& stream) {
  if (end_.get() == nullptr) return;
  if (gpu_->Record(end_.get(), stream.get()).ok()) gpu_->Synchronize(end_.get()).IgnoreError();
}

absl::StatusOr<std::vector<GradBucket>> StagedSync::Bind(const Plan& plan, Deadline deadline) {
  absl::StatusOr<std::vector<GradBucket>> host_buckets;
  {
    MutexLock lock(&host_mutex_);
    host_buckets = host_->Bind(plan, deadline);
  }
  GS_RETURN_IF_ERROR(host_buckets.status());
  const absl::Status allocated = Allocate(plan, *host_buckets);
  if (!allocated.ok()) return FailGroup(allocated);
  bound_ = true;
  return device_buckets_;
}

absl::Status StagedSync::Allocate(const Plan& plan, const std::vector<GradBucket>& host_buckets) {
  host_buckets_ = host_buckets;
  order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  slots_ = plan.slots();
  newest_.resize(SlotElements(plan, slots_.parameters).size());
  GS_ASSIGN_OR_RETURN(device_buckets_, AllocateDeviceBuckets(plan, gpu_));
  const std::vector<BucketMemory> host = MemoryOf(host_buckets_);
  const std::vector<BucketMemory> device = MemoryOf(device_buckets_);
  for (const auto& [begin, end] : PagesUnder(host)) {
    GS_ASSIGN_OR_RETURN(pinned_.emplace_back(),
                        RegisteredMemory::Register(gpu_, reinterpret_cast<void*>(begin),
                                                   static_cast<size_t>(end - begin)));
  }
  GS_ASSIGN_OR_RETURN(down_stream_, ScopedStream::Create(gpu_));
  GS_ASSIGN_OR_RETURN(up_stream_, ScopedStream::Create(gpu_));
  GS_ASSIGN_OR_RETURN(end_, ScopedEvent::Create(gpu_));
  std::vector<std::unique_ptr<Bucket>> buckets;
  for (size_t b = 0; b < device.size(); ++b) {
    auto bucket = std::make_unique<Bucket>(static_cast<int>(b));
    bucket->device = device[b];
    bucket->host = host[b];
    GS_ASSIGN_OR_RETURN(bucket->ready, ScopedEvent::Create(gpu_));
    GS_ASSIGN_OR_RETURN(bucket->down, ScopedEvent::Create(gpu_));
    GS_ASSIGN_OR_RETURN(ScopedEvent up, ScopedEvent::Create(gpu_));
    bucket->up = std::make_shared<CopyEvent>(CopyEvent{gpu_, std::move(up), alarm_});
    buckets.push_back(std::move(bucket));
  }
  buckets_ = std::move(buckets);
  return absl::OkStatus();
}

// Returns what the group failed with first: `status`, or something else.
absl::Status StagedSync::FailGroup(const absl::Status& status) {
  Abort(status);
  const SyncHandle agreed = LaunchOnHost(StepOptions(), kNoBucket);
  agreed.Wait(Deadline::In(kAgreement)).IgnoreError();
  const absl::Status group = host_->status();
  return group.ok() ? status : group;
}

void StagedSync::Abort(absl::Status reason) {
  host_->Abort(std::move(reason));
  MutexLock lock(&mutex_);
  failed_ = true;
  changed_.SignalAll();
}

SyncHandle StagedSync::Launch(const StepOptions& step, int bucket) {
  if (!bound_ || left_) return LaunchOnHost(step, bucket);  // which says why not
  absl::Status in_order = order_.Check(step, bucket);
  if (!in_order.ok()) {
    Abort(std::move(in_order));
    return Queue({kLaunch, step, kNoBucket, SyncPromise("a launch out of order")});
  }
  const SyncPromise& promise = buckets_[bucket]->promises.Begin(step.step);
  if (!host_->status().ok()) return order_.Launched(Queue({kLaunch, step, kNoBucket, promise}));
  absl::Status queued = QueueGradientDown(*buckets_[bucket]);
  if (!queued.ok()) Abort(std::move(queued));
  return order_.Launched(Queue({kLaunch, step, bucket, promise}));
}

SyncHandle StagedSync::Gather(int bucket) {
  const bool known = bucket >= 0 && bucket < static_cast<int>(buckets_.size());
  if (!bound_ || left_ || !sharded() || !known) return GatherOnHost(bucket);  // says why not
  const SyncPromise promise(absl::StrCat("gather of bucket ", bucket));
  if (!host_->status().ok()) return Queue({kGather, StepOptions(), kNoBucket, promise});
  absl::Status recorded = gpu_->Record(buckets_[bucket]->ready.get(), gpu_->ComputeStream());
  if (!recorded.ok()) Abort(std::move(recorded));
  return Queue({kGather, StepOptions(), bucket, promise});
}

SyncHandle StagedSync::Queue(Request request) {
  const SyncHandle handle = request.promise.handle();
  MutexLock lock(&mutex_);
  used_ = true;
  requests_.push_back(std::move(request));
  changed_.SignalAll();
  return handle;
}

absl::Status StagedSync::QueueGradientDown(Bucket& bucket) {
  // The result of the step before leaves the memory that is written now.
  GS_RETURN_IF_ERROR(gpu_->StreamWait(down_stream_.get(), bucket.up->event.get()));
  GS_RETURN_IF_ERROR(QueueCopyDown(bucket, &BucketMemory::grad));
  return CountCopy(kLaunch, down_stream_);
}

// When the compute stream has done what it has been given until now.
absl::Status StagedSync::QueueCopyDown(Bucket& bucket, float* BucketMemory::*what) {
  GS_RETURN_IF_ERROR(gpu_->Record(bucket.ready.get(), gpu_->ComputeStream()));
  GS_RETURN_IF_ERROR(gpu_->StreamWait(down_stream_.get(), bucket.ready.get()));
  GS_RETURN_IF_ERROR(gpu_->Copy(bucket.host.*what, bucket.device.*what,
                                static_cast<size_t>(bucket.host.numel) * sizeof(float),
                                down_stream_.get()));
  return gpu_->Record(bucket.down.get(), down_stream_.get());
}

absl::Status StagedSync::CountCopy(Kind kind, const ScopedStream& stream) {
  return gpu_->RunOnHost(
      [this, kind] {
        MutexLock lock(&mutex_);
        ++copies_[kind];
        changed_.SignalAll();
      },
      stream.get());
}

void StagedSync::LaunchLoop() {
  while (true) {
    absl::optional<Request> request;
    {
      MutexLock lock(&mutex_);
      while (requests_.empty() && !closing_) changed_.Wait(&mutex_);
      if (requests_.empty()) {
        launcher_done_ = true;
        changed_.SignalAll();
        return;
      }
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    const Kind kind = request->kind;
    const int bucket = AwaitTurn(*request) ? request->bucket : kNoBucket;
    SyncHandle handle = kind == kGather && bucket != kNoBucket
                            ? GatherOnHost(bucket)
                            : LaunchOnHost(request->step, bucket);
    MutexLock lock(&mutex_);
    asked_[kind].push_back({*std::move(request), std::move(handle)});
    changed_.SignalAll();
  }
}

// Whether the host can be asked. If not, the group has failed.
bool StagedSync::AwaitTurn(const Request& request) {
  if (request.bucket == kNoBucket) return false;
  if (request.kind == kLaunch) {
    return AwaitCopies(kLaunch, ++launches_, buckets_[request.bucket]->down);
  }
  Gathered& newest = newest_[SlotOf(request.bucket, slots_.parameters)];
  const Gathered before = std::exchange(newest, {++gathers_, request.bucket});
  return AwaitCopies(kGather, before.number, buckets_[before.bucket]->up->event);
}

// Whether so many have ended, of which `last` says that the last one has.
bool StagedSync::AwaitCopies(Kind kind, int64_t count, const ScopedEvent& last) {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const Deadline look = Deadline::In(kLook);
      while (copies_[kind] < count && !failed_) {
        if (changed_.WaitWithDeadline(&mutex_, look)) break;
      }
      if (failed_) return false;
      if (copies_[kind] >= count) return true;
    }
    // A driver that met an error of the GPU calls nobody back.
    const absl::Status alive = gpu_->Done(last.get()).status();
    if (!alive.ok()) Abort(alive);
    if (!host_->status().ok()) return false;
  }
}

SyncHandle StagedSync::LaunchOnHost(const StepOptions& step, int bucket) {
  MutexLock lock(&host_mutex_);
  return host_->Launch(step, bucket);
}

SyncHandle StagedSync::GatherOnHost(int bucket) {
  MutexLock lock(&host_mutex_);
  return host_->Gather(bucket);
}

// Gathers have a thread of their own: what computes next must not wait for the gradients before it.
void StagedSync::FinishLoop(Kind kind) {
  while (true) {
    absl::optional<Asked> asked;
    {
      MutexLock lock(&mutex_);
      while (asked_[kind].empty() && !launcher_done_) changed_.Wait(&mutex_);
      if (asked_[kind].empty()) return;
      asked = std::move(asked_[kind].front());
      asked_[kind].pop_front();
    }
    Finish(*asked);
  }
}

void StagedSync::Finish(const Asked& asked) {
  const Request& request = asked.request;
  absl::Status status = asked.handle.Wait(Deadline::Never());
  // Owners that keep the parameters return nothing.
  const bool kept = request.kind == kLaunch && sharded();
  if (!status.ok() || request.bucket == kNoBucket || kept) return request.promise.Resolve(status);
  Bucket& bucket = *buckets_[request.bucket];
  status = request.kind == kLaunch ? QueueCopyUp(bucket) : QueueGathered(bucket);
  if (!status.ok()) return request.promise.Resolve(FailGroup(status));
  request.promise.Resolve(absl::OkStatus(), [up = bucket.up] { return up->Join(); });
}

absl::Status StagedSync::QueueGathered(Bucket& bucket) {
  // What lies there may be computed with until then.
  GS_RETURN_IF_ERROR(gpu_->StreamWait(up_stream_.get(), bucket.ready.get()));
  GS_RETURN_IF_ERROR(QueueCopyUp(bucket));
  return CountCopy(kGather, up_stream_);
}

absl::Status StagedSync::QueueCopyUp(Bucket& bucket) {
  const bool owner = host_->update_site() == UpdateSite::kOwner;
  GS_RETURN_IF_ERROR(gpu_->Copy(owner ? bucket.device.param : bucket.device.grad,
                                owner ? bucket.host.param : bucket.host.grad,
                                static_cast<size_t>(bucket.host.numel) * sizeof(float),
                                up_stream_.get()));
  return gpu_->Record(bucket.up->event.get(), up_stream_.get());
}

absl::Status StagedSync::CopyParametersDown() {
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    GS_RETURN_IF_ERROR(QueueCopyDown(*bucket, &BucketMemory::param));
  }
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    GS_RETURN_IF_ERROR(gpu_->Synchronize(bucket->down.get()));
  }
  return absl::OkStatus();
}

// What the compute stream does with the old parameters comes first, what it does next after.
absl::Status StagedSync::CopyParametersUp() {
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    GS_RETURN_IF_ERROR(gpu_->Record(bucket->ready.get(), gpu_->ComputeStream()));
    GS_RETURN_IF_ERROR(gpu_->StreamWait(up_stream_.get(), bucket->ready.get()));
    GS_RETURN_IF_ERROR(gpu_->Copy(bucket->device.param, bucket->host.param,
                                  static_cast<size_t>(bucket->host.numel) * sizeof(float),
                                  up_stream_.get()));
    GS_RETURN_IF_ERROR(gpu_->Record(bucket->up->event.get(), up_stream_.get()));
    GS_RETURN_IF_ERROR(gpu_->StreamWait(gpu_->ComputeStream(), bucket->up->event.get()));
  }
  // The host's memory may be written again when the caller returns.
  for (const std::unique_ptr<Bucket>& bucket : buckets_) {
    GS_RETURN_IF_ERROR(gpu_->Synchronize(bucket->up->event.get()));
  }
  return absl::OkStatus();
}

absl::Status StagedSync::BroadcastParameters(Deadline deadline) {
  if (!bound_ || left_ || sharded()) {
    MutexLock lock(&host_mutex_);
    return host_->BroadcastParameters(deadline);  // which says why not
  }
  GS_RETURN_IF_ERROR(host_->status());
  absl::Status copied = CopyParametersDown();
  if (!copied.ok()) return FailGroup(copied);
  {
    MutexLock lock(&host_mutex_);
    GS_RETURN_IF_ERROR(host_->BroadcastParameters(deadline));
  }
  copied = CopyParametersUp();
  return copied.ok() ? copied : FailGroup(copied);
}

absl::Status StagedSync::StoreParameters(int bucket, Deadline deadline) {
  const bool known = bucket >= 0 && bucket < static_cast<int>(buckets_.size());
  if (bound_ && !left_ && sharded() && known) {
    GS_RETURN_IF_ERROR(host_->status());
    absl::Status copied = QueueCopyDown(*buckets_[bucket], &BucketMemory::param);
    if (copied.ok()) copied = gpu_->Synchronize(buckets_[bucket]->down.get());
    if (!copied.ok()) return FailGroup(copied);
  }
  MutexLock lock(&host_mutex_);
  return host_->StoreParameters(bucket, deadline);
}

absl::Status StagedSync::Settle(Deadline deadline) {
  {
    MutexLock lock(&host_mutex_);
    GS_RETURN_IF_ERROR(host_->Settle(deadline));
  }
  if (!bound_ || sharded() || update_site() != UpdateSite::kOwner) return absl::OkStatus();
  absl::Status copied = CopyParametersUp();
  return copied.ok() ? copied : FailGroup(copied);
}

absl::StatusOr<OptimizerState> StagedSync::ExportOptimizerState(Deadline deadline) {
  MutexLock lock(&host_mutex_);
  return host_->ExportOptimizerState(deadline);
}

absl::Status StagedSync::ImportOptimizerState(const OptimizerState& state, Deadline deadline) {
  MutexLock lock(&host_mutex_);
  return host_->ImportOptimizerState(state, deadline);
}

absl::StatusOr<RankState> StagedSync::ExportRankState() {
  MutexLock lock(&host_mutex_);
  return host_->ExportRankState();
}

absl::Status StagedSync::ImportRankState(const RankState& state) {
  MutexLock lock(&host_mutex_);
  return host_->ImportRankState(state);
}

absl::Status StagedSync::Shutdown(Deadline deadline) {
  GS_RETURN_IF_ERROR(host_->status());
  MutexLock lock(&host_mutex_);
  const absl::Status status = host_->Shutdown(deadline);
  left_ = left_ || status.ok();
  return status;
}

WireStats StagedSync::wire_stats() const {
  MutexLock lock(&host_mutex_);
  return host_->wire_stats();
}

Staleness StagedSync::staleness() const {
  MutexLock lock(&host_mutex_);
  return host_->staleness();
}

}  // namespace

std::unique_ptr<GradientSync> CreateStagedSync(std::unique_ptr<GradientSync> host,
                                               std::shared_ptr<GpuApi> gpu) {
  return std::make_unique<StagedSync>(std::move(host), std::move(gpu));
}

}  // namespace gradsync
