#ifndef GRADSYNC_ALLREDUCE_NCCL_OWNER_H_
#define GRADSYNC_ALLREDUCE_NCCL_OWNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "allreduce/nccl_buckets.h"
#include "allreduce/nccl_communicator.h"
#include "allreduce/nccl_shares.h"
#include "base/deadline.h"
#include "gpu/device_range_optimizer.h"
#include "gpu/gpu_api.h"
#include "gpu/gpu_resources.h"
#include "optim/optimizer_state.h"
#include "plan/plan.h"
#include "plan/step_options.h"
#include "sync/side_channel.h"

namespace gradsync {

// What a rank does with the shares of buckets that it owns, none or many: updates them with its
// part of the optimizer's state, measures and clips their norm, and finds out whether all ranks
// mean the same step. All of it is queued on a stream, in whose order the host takes part by
// GpuApi::RunOnHost(): nobody waits.
//
// Not thread-safe. Methods with a stream return when the work is queued, and return the errors of
// GpuApi and NcclCommunicator. The object, whose memory the work uses, must outlive the work.
class NcclOwner {
 public:
  static absl::StatusOr<std::unique_ptr<NcclOwner>> Create(
      std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets, const Plan& plan,
      int rank, const NcclShares& shares);

  // Collective: compares the options of all ranks. `refuse` is called on a thread of the driver,
  // before later work of the stream, with FAILED_PRECONDITION when another rank's differ from this
  // one's; it must be short and call nothing of GpuApi.
  absl::Status CompareSteps(const StepOptions& step, NcclCommunicator& communicator,
                            std::function<void(absl::Status)> refuse, GpuStream stream,
                            Deadline deadline);

  // One step of the optimizer over this rank's shares of `bucket`, whose grad holds the mean there.
  absl::Status Update(int bucket, const StepOptions& step, GpuStream stream);

  // For clipping by the norm of all buckets, when all of this rank's shares hold the mean:
  // collective, AgreeOnFactor(), then Clip() for each bucket. One kernel sums the squares of blocks
  // of at most 64 Ki elements of a share; their sums are added in the order of the shares: the same
  // bits on all ranks, and, where shares are chunks, on all backends whose owners have chunks
  // (plan/clip_scale.h).
  absl::Status AgreeOnFactor(const StepOptions& step, NcclCommunicator& communicator,
                             GpuStream stream, Deadline deadline);
  absl::Status Clip(int bucket, GpuStream stream);

  // Collective: the state after `steps` steps, whole on every rank. Blocks; nothing may be queued.
  // Errors: also those of the side channel; DATA_LOSS when a rank's part has another length than
  // the plan's.
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

  NcclOwner(std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets,
            const Plan& plan, int rank, const NcclShares& shares);

  std::vector<SquaresPiece> CutIntoBlocks();
  static size_t Floats(ElementRange range) { return static_cast<size_t>(range.size()); }
  absl::StatusOr<std::shared_ptr<GpuMemory>> NewStage() const;
  absl::Status CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream);
  absl::StatusOr<std::string> ExportBucket(int bucket, GpuStream stream);
  absl::Status Collect(int bucket, int rank, absl::string_view exported,
                       OptimizerState* state) const;

  const std::shared_ptr<GpuApi> gpu_;
  const std::shared_ptr<const NcclBuckets> buckets_;
  const Plan plan_;
  const int rank_;
  const NcclShares shares_;
  const NcclShares runs_;
  std::vector<std::vector<Part>> parts_;  // by bucket: this rank's runs
  size_t squares_per_rank_ = 0;           // as many as the blocks of the rank that has most
  std::vector<size_t> places_;            // of all ranks' blocks in squares_, in their order
  size_t num_blocks_ = 0;                 // of this rank
  std::shared_ptr<GpuMemory> blocks_;     // pinned: SquaresPiece by block of this rank
  ScopedEvent copied_;
  std::shared_ptr<GpuMemory> stage_;    // of an export or import
  std::shared_ptr<GpuMemory> steps_;    // pinned: StepNote by rank
  std::shared_ptr<GpuMemory> squares_;  // pinned: double by rank and the rank's blocks
  std::shared_ptr<GpuMemory> factor_;   // pinned: float
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_OWNER_H_
