#include "sync/local_sync.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/kernels.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "optim/range_optimizer.h"
#include "optim/state_mapping.h"
#include "plan/codec.h"
#include "sync/flat_buckets.h"
#include "sync/launch_order.h"
#include "sync/sync_life.h"

namespace gradsync {
namespace {

class LocalSync : public GradientSync {
 public:
  explicit LocalSync(UpdateSite update_site) : update_site_(update_site), order_(0) {}

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline) override {
    GS_RETURN_IF_ERROR(status());
    GS_RETURN_IF_ERROR(life_.BeginBind());
    if (plan.world_size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan: expected a world size of 1 without synchronisation, found ", plan.world_size()));
    }
    GS_RETURN_IF_ERROR(CheckUncompressed(plan.codec(), "nothing is sent without synchronisation"));
    GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, AllocateBuckets(plan));
    life_.SetBound();
    plan_ = plan;
    order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
    memory_ = MemoryOf(buckets);
    if (update_site_ == UpdateSite::kOwner) {
      for (size_t b = 0; b < memory_.size(); ++b) {
        const ElementRange whole = {0, memory_[b].numel};
        optimizers_.emplace_back(plan.optimizer(), whole,
                                 plan.GroupRanges(static_cast<int>(b), whole));
      }
    }
    return buckets;
  }

  absl::Status BroadcastParameters(Deadline) override { return CheckUsable(); }
  absl::Status Settle(Deadline) override { return CheckUsable(); }

  SyncHandle Launch(const StepOptions& step, int bucket) override {
    const absl::Status usable = CheckUsable();
    if (!usable.ok()) return ResolvedHandle(usable);
    const absl::Status in_order = order_.Check(step, bucket);
    if (!in_order.ok()) {
      Abort(in_order);
      return ResolvedHandle(status());
    }
    return order_.Launched(Update(step, bucket));
  }

  UpdateSite update_site() const override { return update_site_; }
  SyncIdentity identity() const override { return {Backend::kLocal}; }

  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline) override {
    GS_RETURN_IF_ERROR(CheckUsable());
    OptimizerState state;
    state.step = step_;
    for (size_t b = 0; b < optimizers_.size(); ++b) {
      if (!optimizers_[b].has_state()) continue;
      const std::vector<std::string> names = SlotNames(plan_.optimizer());
      for (size_t s = 0; s < names.size(); ++s) {
        ScatterSlot(plan_, static_cast<int>(b), {0, memory_[b].numel}, names[s],
                    optimizers_[b].slot(static_cast<int>(s)).data(), &state);
      }
    }
    return state;
  }

  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline) override {
    if (life_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
    GS_RETURN_IF_ERROR(CheckUsable());
    step_ = state.step;
    for (size_t b = 0; b < optimizers_.size(); ++b) {
      optimizers_[b].ClearState();
      if (state.slots.empty()) continue;
      const std::vector<std::string> names = SlotNames(plan_.optimizer());
      for (size_t s = 0; s < names.size(); ++s) {
        GatherSlot(plan_, static_cast<int>(b), {0, memory_[b].numel}, names[s], state,
                   optimizers_[b].mutable_slot(static_cast<int>(s)).data());
      }
    }
    return absl::OkStatus();
  }

  absl::Status status() const override {
    MutexLock lock(&mutex_);
    return status_;
  }

  void Abort(absl::Status reason) override {
    reason = life_.ReasonOf(std::move(reason));
    MutexLock lock(&mutex_);
    if (left_) return;
    if (status_.ok()) status_ = std::move(reason);
    for (const SyncPromise& promise : held_) promise.Resolve(status_);
    held_.clear();
  }

  absl::Status Shutdown(Deadline) override {
    if (life_.left()) return absl::OkStatus();
    GS_RETURN_IF_ERROR(CheckUsable());
    life_.SetLeft();
    MutexLock lock(&mutex_);
    left_ = true;
    return status_;
  }

  WireStats wire_stats() const override { return {}; }

 private:
  absl::Status CheckUsable() const {
    GS_RETURN_IF_ERROR(status());
    return life_.CheckUsable();
  }

  // What a launch in order does.
  SyncHandle Update(const StepOptions& step, int bucket) {
    const BucketMemory& memory = memory_[bucket];
    if (step.inverse_loss_scale != 1) {
      Scale(memory.grad, memory.numel, static_cast<float>(step.inverse_loss_scale));
    }
    if (update_site_ == UpdateSite::kWorker) return ResolvedHandle(absl::OkStatus());
    if (step.max_norm == 0) {
      UpdateBucket(step, bucket);
      return ResolvedHandle(absl::OkStatus());
    }
    const SyncPromise promise(absl::StrCat("bucket ", bucket, " of step ", step.step));
    {
      MutexLock lock(&mutex_);
      if (!status_.ok()) return ResolvedHandle(status_);
      held_.push_back(promise);
      if (held_.size() < memory_.size()) return promise.handle();
    }
    UpdateClipped(step);
    return promise.handle();
  }

  void UpdateBucket(const StepOptions& step, int bucket) {
    optimizers_[bucket].Apply(memory_[bucket].param, memory_[bucket].grad, step.lr, step.step);
    step_ = step.step;
  }

  // The norm needs all buckets, so their handles resolve together.
  void UpdateClipped(const StepOptions& step) {
    double squares = 0;
    for (size_t b = 0; b < memory_.size(); ++b) {
      const StripeLayout& layout = plan_.buckets()[b].layout;
      for (int slot = 0; slot < layout.slots(); ++slot) {
        const ElementRange range = layout.range(slot);
        squares += SumOfSquares(memory_[b].grad + range.begin, range.size());
      }
    }
    const double scale = step.max_norm / (std::sqrt(squares) + 1e-6);
    for (size_t b = 0; b < memory_.size(); ++b) {
      if (scale < 1) Scale(memory_[b].grad, memory_[b].numel, static_cast<float>(scale));
      UpdateBucket(step, static_cast<int>(b));
    }
    MutexLock lock(&mutex_);
    for (const SyncPromise& promise : held_) promise.Resolve(absl::OkStatus());
    held_.clear();
  }

  const UpdateSite update_site_;
  SyncLife life_{/*rank=*/0};
  Plan plan_;
  LaunchOrder order_;
  std::vector<BucketMemory> memory_;
  std::vector<RangeOptimizer> optimizers_;  // by bucket; empty under kWorker
  int64_t step_ = 0;
  mutable Mutex mutex_;
  std::vector<SyncPromise> held_ ABSL_GUARDED_BY(mutex_);  // buckets of a clipped step
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool left_ ABSL_GUARDED_BY(mutex_) = false;  // as life_ says, for Abort()
};

}  // namespace

std::unique_ptr<GradientSync> CreateLocalSync(UpdateSite update_site) {
  return std::make_unique<LocalSync>(update_site);
}

}  // namespace gradsync
