#ifndef GRADSYNC_ALLREDUCE_IPC_OWNER_H_
#define GRADSYNC_ALLREDUCE_IPC_OWNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "allreduce/ipc_layout.h"
#include "base/deadline.h"
#include "gpu/device_range_optimizer.h"
#include "gpu/gpu_api.h"
#include "gpu/gpu_resources.h"
#include "optim/optimizer_state.h"
#include "plan/step_options.h"
#include "sync/side_channel.h"

namespace gradsync {

// What a rank keeps and does, under update at owner, for the pieces of buckets that it owns
// (IpcLayout::Pieces): its part of the optimizer's state, and the update.
//
// Not thread-safe. Methods with a stream return when the work is queued unless they say that they
// block, and return the errors of GpuApi. The object, whose memory the work uses, must outlive it.
class IpcOwner {
 public:
  // `region` is the rank's. Both must outlive the owner.
  static absl::StatusOr<std::unique_ptr<IpcOwner>> Create(std::shared_ptr<GpuApi> gpu,
                                                          const IpcLayout& layout, int rank,
                                                          char* region);

  // One step of the optimizer over the own pieces of `bucket`, whose grad holds the mean there. The
  // first allocates state.
  absl::Status Update(int bucket, const StepOptions& step, GpuStream stream);

  // Collective: the state after `steps` steps, whole on every rank. Blocks; nothing may be queued.
  // Errors: also those of the side channel; DATA_LOSS when a rank's part has another length than
  // the plan's.
  absl::StatusOr<OptimizerState> Export(int64_t steps, GpuStream stream, SideChannel& side_channel,
                                        Deadline deadline);

  // Replaces the state. `state` must have passed CheckState(). Blocks; nothing may be queued.
  absl::Status Import(const OptimizerState& state, GpuStream stream);

 private:
  struct Piece {
    ElementRange range;
    DeviceRangeOptimizer optimizer;
  };

  IpcOwner(std::shared_ptr<GpuApi> gpu, const IpcLayout& layout, char* region)
      : gpu_(std::move(gpu)), layout_(layout), region_(region) {}

  absl::Status CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream);
  absl::StatusOr<std::string> ExportBucket(int bucket, GpuStream stream);
  absl::Status Collect(int bucket, int rank, absl::string_view exported,
                       OptimizerState* state) const;

  const std::shared_ptr<GpuApi> gpu_;
  const IpcLayout& layout_;
  char* const region_;
  std::vector<std::vector<Piece>> pieces_;  // by bucket
  ScopedEvent copied_;
  std::shared_ptr<GpuMemory> stage_;  // pinned, as large as the largest piece
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_OWNER_H_
