// A backend of the host for tests of what is above it.

#ifndef GRADSYNC_CORE_SYNC_MANUAL_SYNC_H_
#define GRADSYNC_CORE_SYNC_MANUAL_SYNC_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/plan/plan.h"
#include "core/sync/buckets.h"
#include "core/sync/gradient_sync.h"
#include "core/sync/group_sync.h"

namespace gradsync {

constexpr int kBuckets = 3;
constexpr int64_t kNumel = 100;

inline Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

inline Plan ThreeBuckets() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(
      {{"a", {kNumel}, {1}, 0}, {"b", {kNumel}, {1}, 0}, {"c", {kNumel}, {1}, 0}}, {{0}, {1}, {2}},
      optimizer, /*world_size=*/1, /*chunk_bytes=*/512);
}

// The same, of which the first and the last share their memory.
inline Plan ThreeBucketsInTwoSlots() {
  BucketSlots slots;
  slots.gradients = slots.parameters = 2;
  return *ThreeBuckets().WithSlots(slots);
}

inline StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  return step;
}

// A backend on the host whose exchanges end when the test says so. An exchange turns `grad` g into
// 10 g. Where the plan has slots of parameters the test says what a gather brings.
class ManualSync : public GradientSync {
 public:
  // What was launched so far.
  std::vector<int> launched() const {
    MutexLock lock(&mutex_);
    return launched_;
  }

  void AwaitLaunch(int bucket) const {
    MutexLock lock(&mutex_);
    while (std::find(launched_.begin(), launched_.end(), bucket) == launched_.end()) {
      changed_.Wait(&mutex_);
    }
  }

  // The first element of each gradient when it was launched.
  std::vector<float> seen() const {
    MutexLock lock(&mutex_);
    return seen_;
  }

  void Resolve(int bucket) {
    MutexLock lock(&mutex_);
    float* const grad = memory_[bucket].grad;
    for (int64_t i = 0; i < kNumel; ++i) grad[i] *= 10;
    promises_[bucket].Resolve(absl::OkStatus());
  }

  // The buckets that were gathered so far.
  std::vector<int> gathered() const {
    MutexLock lock(&mutex_);
    return gathered_;
  }

  // Until there have been so many gathers.
  void AwaitGathers(size_t count) const {
    MutexLock lock(&mutex_);
    while (gathered_.size() < count) changed_.Wait(&mutex_);
  }

  void ResolveGather(int bucket, float value) {
    MutexLock lock(&mutex_);
    std::fill_n(memory_[bucket].param, kNumel, value);
    gathers_[bucket].Resolve(absl::OkStatus());
  }

  // The first element of each bucket that was stored.
  std::vector<float> stored() const {
    MutexLock lock(&mutex_);
    return stored_;
  }

  // The update is at the owner, which is the host.
  void OwnParameters() { owner_ = true; }
  void SetParameters(float value) {
    MutexLock lock(&mutex_);
    for (const BucketMemory& bucket : memory_) std::fill_n(bucket.param, bucket.numel, value);
  }

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline) override {
    MutexLock lock(&mutex_);
    std::vector<GradBucket> buckets = *AllocateBuckets(plan);
    memory_ = MemoryOf(buckets);
    promises_.assign(memory_.size(), SyncPromise("nothing"));
    gathers_.assign(memory_.size(), SyncPromise("nothing"));
    return buckets;
  }
  // Every parameter p becomes 10 p.
  absl::Status BroadcastParameters(Deadline) override {
    MutexLock lock(&mutex_);
    for (const BucketMemory& bucket : memory_) {
      for (int64_t i = 0; i < bucket.numel; ++i) bucket.param[i] *= 10;
    }
    return status_;
  }
  SyncHandle Launch(const StepOptions& step, int bucket) override {
    if (absl::Status order = order_.Check(step, bucket); !order.ok()) Abort(order);
    MutexLock lock(&mutex_);
    if (!status_.ok()) return ResolvedHandle(status_);
    launched_.push_back(bucket);
    seen_.push_back(memory_[bucket].grad[0]);
    promises_[bucket] = SyncPromise("a bucket");
    changed_.SignalAll();
    return promises_[bucket].handle();
  }
  SyncHandle Gather(int bucket) override {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return ResolvedHandle(status_);
    gathered_.push_back(bucket);
    gathers_[bucket] = SyncPromise("a gather");
    changed_.SignalAll();
    return gathers_[bucket].handle();
  }
  absl::Status StoreParameters(int bucket, Deadline) override {
    MutexLock lock(&mutex_);
    stored_.push_back(memory_[bucket].param[0]);
    return status_;
  }
  SyncIdentity identity() const override { return {Backend::kLocal}; }
  UpdateSite update_site() const override {
    return owner_ ? UpdateSite::kOwner : UpdateSite::kWorker;
  }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline) override {
    return OptimizerState();
  }
  absl::Status ImportOptimizerState(const OptimizerState&, Deadline) override { return status(); }
  absl::StatusOr<RankState> ExportRankState() override { return RankState(); }
  absl::Status ImportRankState(const RankState&) override { return status(); }
  absl::Status Settle(Deadline) override { return status(); }
  absl::Status status() const override {
    MutexLock lock(&mutex_);
    return status_;
  }
  void Abort(absl::Status reason) override {
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = std::move(reason);
    for (const SyncPromise& promise : promises_) promise.Resolve(status_);
    for (const SyncPromise& promise : gathers_) promise.Resolve(status_);
  }
  absl::Status Shutdown(Deadline) override { return status(); }
  WireStats wire_stats() const override { return {}; }

 private:
  std::atomic<bool> owner_{false};
  LaunchOrder order_{kBuckets};
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<BucketMemory> memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> promises_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> gathers_ ABSL_GUARDED_BY(mutex_);  // by bucket: the last
  std::vector<int> launched_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> seen_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> gathered_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> stored_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_MANUAL_SYNC_H_
