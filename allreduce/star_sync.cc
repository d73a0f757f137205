#include "allreduce/star_sync.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"
#include "core/group/side_channel.h"
#include "core/plan/codec.h"
#include "core/plan/stripes.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {
namespace {

class StarSync : public SyncEngine {
 public:
  // Gradients have a channel of their own: the host's is the callers'.
  explicit StarSync(EngineHost& host)
      : SyncEngine(host),
        channel_(host.worker(), "star gradients"),
        queue_([&host](absl::Status status) { host.Report(std::move(status)); }) {}

  // The product has no name for it; this is what it is most like.
  SyncIdentity identity() const override { return {Backend::kPsOverGrpc}; }
  UpdateSite update_site() const override { return UpdateSite::kWorker; }
  std::string Terms() const override { return ""; }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "a star adds what it is sent");
  }

  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline) override {
    GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, AllocateBuckets(plan));
    plan_ = plan;
    memory_ = MemoryOf(buckets);
    buckets_ = buckets;
    return buckets;
  }

  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    return queue_.Add(absl::StrCat("bucket ", bucket, " of step ", step.step),
                      [this, step, bucket] { return Exchange(step, bucket); });
  }

  absl::Status Broadcast(int64_t, Deadline deadline) override {
    return queue_.Add("the broadcast of parameters", [this] { return BroadcastBuckets(); })
        .Wait(deadline);
  }

  // There is none at the worker.
  absl::StatusOr<OptimizerState> Export(int64_t, Deadline) override { return OptimizerState(); }
  absl::Status Import(const OptimizerState&, Deadline) override { return absl::OkStatus(); }
  WireStats wire_stats() const override { return {}; }

  // The store ends what waits in channel_ when the group has failed.
  void Halt(const absl::Status&) override { queue_.Halt(); }
  void Fail(const absl::Status& status) override { queue_.Fail(status); }
  void Close() override { queue_.Stop(); }

 private:
  Deadline Soon() const { return Deadline::In(host().worker().timeout); }

  static absl::string_view Bytes(const float* values, int64_t numel) {
    return {reinterpret_cast<const char*>(values), static_cast<size_t>(numel) * sizeof(float)};
  }

  absl::Status Exchange(const StepOptions& step, int bucket) {
    const BucketMemory& memory = memory_[bucket];
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        channel_.AllGather(Bytes(memory.grad, memory.numel), Soon()));
    for (const std::string& gradient : all) GS_RETURN_IF_ERROR(CheckSize(gradient, memory.numel));
    Fold(all, plan_.buckets()[bucket].layout, step, memory.grad);
    return absl::OkStatus();
  }

  // The order that decides the mean's bits is told in core/plan/stripes.h.
  void Fold(const std::vector<std::string>& gradients, const StripeLayout& layout,
            const StepOptions& step, float* mean) const {
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const ElementRange range = layout.range(slot);
      const size_t size = static_cast<size_t>(range.size());
      const auto of_position = [&](int position) {
        const int rank = FoldRank(layout.chunk_of(slot), position, world_size());
        return gradients[rank].data() + range.begin * sizeof(float);
      };
      Copy(mean + range.begin, of_position(0), size);
      for (int position = 1; position < world_size(); ++position) {
        AddUnaligned(mean + range.begin, of_position(position), size);
      }
    }
    ScaleTwice(mean, static_cast<size_t>(layout.numel()), 1.0f / static_cast<float>(world_size()),
               static_cast<float>(step.inverse_loss_scale));
  }

  absl::Status BroadcastBuckets() {
    for (const BucketMemory& bucket : memory_) {
      GS_ASSIGN_OR_RETURN(const std::string values,
                          channel_.Broadcast(Bytes(bucket.param, bucket.numel), Soon()));
      GS_RETURN_IF_ERROR(CheckSize(values, bucket.numel));
      std::memcpy(bucket.param, values.data(), values.size());
    }
    return absl::OkStatus();
  }

  static absl::Status CheckSize(absl::string_view bytes, int64_t numel) {
    const size_t expected = static_cast<size_t>(numel) * sizeof(float);
    if (bytes.size() == expected) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("star: expected ", expected, " bytes of a bucket, found ", bytes.size()));
  }

  Plan plan_;
  std::vector<GradBucket> buckets_;
  std::vector<BucketMemory> memory_;  // of buckets_
  SideChannel channel_;               // of the queue's thread alone
  WorkQueue queue_;                   // last: its thread uses all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateStarSync(const WorkerGroup& group) {
  return NewGroupSync(group, "star",
                      [](EngineHost& host) { return std::make_unique<StarSync>(host); });
}

}  // namespace gradsync
