#include "core/sync/local_sync.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/kernels.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/optim/optimizer_state.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/codec.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {
namespace {

class LocalEngine : public SyncEngine {
 public:
  LocalEngine(EngineHost& host, UpdateSite update_site)
      : SyncEngine(host), update_site_(update_site) {}

  SyncIdentity identity() const override { return {Backend::kLocal}; }
  UpdateSite update_site() const override { return update_site_; }
  std::string Terms() const override { return ""; }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "nothing is sent without synchronisation");
  }

  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline) override {
    GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, AllocateBuckets(plan));
    plan_ = plan;
    memory_ = MemoryOf(buckets);
    for (size_t b = 0; b < memory_.size(); ++b) {
      if (update_site_ == UpdateSite::kWorker) break;
      const ElementRange whole = {0, memory_[b].numel};
      optimizers_.emplace_back(plan.optimizer(), whole,
                               plan.GroupRanges(static_cast<int>(b), whole));
    }
    return buckets;
  }

  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override;
  absl::Status Broadcast(int64_t, Deadline) override { return absl::OkStatus(); }

  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline) override {
    OptimizerState state;
    state.step = steps;
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

  absl::Status Import(const OptimizerState& state, Deadline) override {
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

  WireStats wire_stats() const override { return {}; }

  void Halt(const absl::Status&) override {}
  void Fail(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    failure_ = status;
    for (const SyncPromise& promise : held_) promise.Resolve(status);
    held_.clear();
  }
  void Close() override {}

 private:
  void UpdateBucket(const StepOptions& step, int bucket) {
    optimizers_[bucket].Apply(memory_[bucket].param, memory_[bucket].grad, step.lr, step.step);
  }
  void UpdateClipped(const StepOptions& step);

  const UpdateSite update_site_;
  Plan plan_;
  std::vector<BucketMemory> memory_;
  std::vector<RangeOptimizer> optimizers_;  // by bucket; empty under kWorker
  Mutex mutex_;
  std::vector<SyncPromise> held_ ABSL_GUARDED_BY(mutex_);  // buckets of a clipped step
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<SyncHandle> LocalEngine::Launch(const StepOptions& step, int bucket) {
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
    if (!failure_.ok()) return ResolvedHandle(failure_);
    held_.push_back(promise);
    if (held_.size() < memory_.size()) return promise.handle();
  }
  UpdateClipped(step);
  return promise.handle();
}

// The norm needs all buckets, so their handles resolve together.
void LocalEngine::UpdateClipped(const StepOptions& step) {
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

}  // namespace

std::unique_ptr<GradientSync> CreateLocalSync(UpdateSite update_site) {
  return NewSoloSync("local", [update_site](EngineHost& host) {
    return std::make_unique<LocalEngine>(host, update_site);
  });
}

}  // namespace gradsync
