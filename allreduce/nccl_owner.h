#ifndef GRADSYNC_ALLREDUCE_NCCL_OWNER_H_
#define GRADSYNC_ALLREDUCE_NCCL_OWNER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/device_owner.h"
#include "allreduce/nccl_buckets.h"
#include "allreduce/nccl_communicator.h"
#include "core/base/deadline.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/gpu/kernel_operands.h"
#include "core/plan/plan.h"

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

  // The optimizer's state of this rank's shares, and their update.
  DeviceOwner& state() { return *state_; }

  // Collective: compares the options of all ranks. `refuse` is called on a thread of the driver,
  // before later work of the stream, with FAILED_PRECONDITION when another rank's differ from this
  // one's; it must be short and call nothing of GpuApi.
  absl::Status CompareSteps(const StepOptions& step, NcclCommunicator& communicator,
                            std::function<void(absl::Status)> refuse, GpuStream stream,
                            Deadline deadline);

  // For clipping by the norm of all buckets, when all of this rank's shares hold the mean:
  // collective, AgreeOnFactor(), then Clip() for each bucket. One kernel sums the squares of blocks
  // of at most 64 Ki elements of a share; their sums are added in the order of the shares: the same
  // bits on all ranks, and, where shares are chunks, on all backends whose owners have chunks
  // (core/plan/plan.h).
  absl::Status AgreeOnFactor(const StepOptions& step, NcclCommunicator& communicator,
                             GpuStream stream, Deadline deadline);
  absl::Status Clip(int bucket, GpuStream stream) {
    return state_->Scale(bucket, factor_->floats(), stream);
  }

 private:
  NcclOwner(std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets,
            const Plan& plan, int rank, const NcclShares& shares);

  std::vector<SquaresPiece> CutIntoBlocks();

  const std::shared_ptr<GpuApi> gpu_;
  const std::shared_ptr<const NcclBuckets> buckets_;
  const Plan plan_;
  const int rank_;
  const NcclShares shares_;
  std::unique_ptr<DeviceOwner> state_;
  size_t squares_per_rank_ = 0;         // as many as the blocks of the rank that has most
  std::vector<size_t> places_;          // of all ranks' blocks in squares_, in their order
  size_t num_blocks_ = 0;               // of this rank
  std::shared_ptr<GpuMemory> blocks_;   // pinned: SquaresPiece by block of this rank
  std::shared_ptr<GpuMemory> steps_;    // pinned: StepNote by rank
  std::shared_ptr<GpuMemory> squares_;  // pinned: double by rank and the rank's blocks
  std::shared_ptr<GpuMemory> factor_;   // pinned: float
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_OWNER_H_
