#include "tests/threads_sync.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/kernels.h"
#include "core/base/mutex.h"
#include "core/sync/buckets.h"

namespace gradsync {
namespace {

// One bucket of one step, while ranks arrive.
struct Exchange {
  std::vector<SyncPromise> promises;
};

struct Group {
  explicit Group(int world_size) : memory(world_size) {}

  Mutex mutex;
  CondVar changed;
  std::vector<std::vector<BucketMemory>> memory ABSL_GUARDED_BY(mutex);  // by rank
  std::map<int, Exchange> exchanges ABSL_GUARDED_BY(mutex);              // by bucket
  int at_broadcast ABSL_GUARDED_BY(mutex) = 0;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

class ThreadsSync : public GradientSync {
 public:
  ThreadsSync(std::shared_ptr<Group> group, int rank, int world_size)
      : group_(std::move(group)), rank_(rank), world_size_(world_size) {}

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline) override {
    std::vector<GradBucket> buckets = *AllocateBuckets(plan);
    MutexLock lock(&group_->mutex);
    group_->memory[rank_] = MemoryOf(buckets);
    return buckets;
  }

  absl::Status BroadcastParameters(Deadline) override {
    MutexLock lock(&group_->mutex);
    const int round = group_->at_broadcast++ / world_size_;
    group_->changed.SignalAll();
    while (group_->at_broadcast < (round + 1) * world_size_) group_->changed.Wait(&group_->mutex);
    const std::vector<BucketMemory>& from = group_->memory[0];
    const std::vector<BucketMemory>& to = group_->memory[rank_];
    for (size_t b = 0; b < from.size() && rank_ != 0; ++b) {
      std::copy_n(from[b].param, from[b].numel, to[b].param);
    }
    return group_->status;
  }

  SyncHandle Launch(const StepOptions& step, int bucket) override {
    MutexLock lock(&group_->mutex);
    if (!group_->status.ok()) return ResolvedHandle(group_->status);
    Exchange& exchange = group_->exchanges[bucket];
    exchange.promises.emplace_back(absl::StrCat("bucket ", bucket, " of step ", step.step));
    const SyncHandle handle = exchange.promises.back().handle();
    if (static_cast<int>(exchange.promises.size()) == world_size_) Complete(step, bucket);
    return handle;
  }

  UpdateSite update_site() const override { return UpdateSite::kWorker; }
  SyncIdentity identity() const override { return {Backend::kLocal}; }
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline) override {
    return OptimizerState();
  }
  absl::Status ImportOptimizerState(const OptimizerState&, Deadline) override { return status(); }
  absl::StatusOr<RankState> ExportRankState() override { return RankState(); }
  absl::Status ImportRankState(const RankState&) override { return status(); }

  absl::Status Settle(Deadline) override { return status(); }
  absl::Status status() const override {
    MutexLock lock(&group_->mutex);
    return group_->status;
  }

  void Abort(absl::Status reason) override {
    MutexLock lock(&group_->mutex);
    if (group_->status.ok()) group_->status = std::move(reason);
    for (auto& [bucket, exchange] : group_->exchanges) {
      for (const SyncPromise& promise : exchange.promises) promise.Resolve(group_->status);
    }
    group_->exchanges.clear();
  }

  absl::Status Shutdown(Deadline) override { return status(); }
  WireStats wire_stats() const override { return {}; }

 private:
  void Complete(const StepOptions& step, int bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_->mutex) {
    const BucketMemory mean = group_->memory[0][bucket];
    for (int rank = 1; rank < world_size_; ++rank) {
      Add(mean.grad, group_->memory[rank][bucket].grad, mean.numel);
    }
    ScaleTwice(mean.grad, mean.numel, 1.0f / static_cast<float>(world_size_),
               static_cast<float>(step.inverse_loss_scale));
    for (int rank = 1; rank < world_size_; ++rank) {
      std::copy_n(mean.grad, mean.numel, group_->memory[rank][bucket].grad);
    }
    for (const SyncPromise& promise : group_->exchanges[bucket].promises) {
      promise.Resolve(absl::OkStatus());
    }
    group_->exchanges.erase(bucket);
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  const int world_size_;
};

}  // namespace

std::vector<std::unique_ptr<GradientSync>> CreateThreadsSync(int world_size) {
  const auto group = std::make_shared<Group>(world_size);
  std::vector<std::unique_ptr<GradientSync>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<ThreadsSync>(group, rank, world_size));
  }
  return ranks;
}

}  // namespace gradsync
