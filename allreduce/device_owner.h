#ifndef GRADSYNC_ALLREDUCE_DEVICE_OWNER_H_
#define GRADSYNC_ALLREDUCE_DEVICE_OWNER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/collect_state.h"
#include "core/base/deadline.h"
#include "core/gpu/device_range_optimizer.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/group/side_channel.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// What a rank keeps and does on its GPU, under update at the owner, for the ranges of buckets that
// it owns, none or many: its part of the optimizer's state, and the update.
//
// Not thread-safe. Methods with a stream return when the work is queued unless they say that they
// block, and return the errors of GpuApi. The object, whose memory the work uses, must outlive it.
class DeviceOwner {
 public:
  // A bucket on this rank's GPU, whose memory must outlive the owner.
  struct Bucket {
    float* grad = nullptr;
    float* param = nullptr;
    std::vector<std::vector<ElementRange>> ranges;  // owned, by rank; none of them empty
  };

  static absl::StatusOr<std::unique_ptr<DeviceOwner>> Create(std::shared_ptr<GpuApi> gpu,
                                                             const Plan& plan, int rank,
                                                             std::vector<Bucket> buckets);

  // One step of the optimizer over the own ranges of `bucket`, whose grad holds the mean there. The
  // first allocates state.
  absl::Status Update(int bucket, const StepOptions& step, GpuStream stream);

  // Multiplies the mean there by `*factor`, in memory that the GPU reaches.
  absl::Status Scale(int bucket, const float* factor, GpuStream stream);

  // Collective: the state after `steps` steps, whole on every rank. Blocks; nothing may be queued.
  // Errors: also those of CollectState().
  absl::StatusOr<OptimizerState> Export(int64_t steps, GpuStream stream, SideChannel& side_channel,
                                        Deadline deadline);

  // Replaces the state. `state` must have passed CheckState(). Blocks; nothing may be queued.
  absl::Status Import(const OptimizerState& state, GpuStream stream);

 private:
  // What is updated as one, counted from the bucket's begin.
  struct Part {
    ElementRange range;
    DeviceRangeOptimizer optimizer;
  };

  DeviceOwner(std::shared_ptr<GpuApi> gpu, const Plan& plan, std::vector<Bucket> buckets)
      : gpu_(std::move(gpu)), plan_(plan), buckets_(std::move(buckets)) {}

  absl::StatusOr<std::shared_ptr<GpuMemory>> NewStage() const;
  absl::Status CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream);
  absl::StatusOr<StateBytes> ExportBucket(int bucket, GpuStream stream);

  const std::shared_ptr<GpuApi> gpu_;
  const Plan plan_;
  const std::vector<Bucket> buckets_;
  std::vector<std::vector<Part>> parts_;  // by bucket: this rank's
  ScopedEvent copied_;
  std::shared_ptr<GpuMemory> stage_;  // pinned, of an export or import
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_DEVICE_OWNER_H_
