#ifndef GRADSYNC_ALLREDUCE_NCCL_GRADIENT_SYNC_H_
#define GRADSYNC_ALLREDUCE_NCCL_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "allreduce/nccl_api.h"
#include "core/gpu/gpu_api.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct NcclOptions {
  // `group.timeout` is how long queued work may take, and calls of NCCL to get done.
  WorkerGroup group;
  // kOwner: owners keep the optimizer's state of what they own and update it. In a ring these are
  // all ranks, each with its n-th of each bucket.
  UpdateSite update_site = UpdateSite::kWorker;
  // Parameter servers: the first so many ranks own the plan's chunks, and means have its bits
  // (nccl_topology.h). 0: none, but a ring by NCCL's own collectives.
  int owners = 0;
  // This rank's GPU, and NCCL on it.
  std::shared_ptr<GpuApi> gpu;
  std::shared_ptr<NcclApi> nccl;
  // How long a failure may wait for ncclCommAbort, and other ranks have to say where they are when
  // one is suspected to be silent. After the former the abort goes on by itself.
  absl::Duration abort_bound = absl::Seconds(5);
  absl::Duration grace = absl::Seconds(3);
};

// A GradientSync over NCCL, one GPU per rank. docs/internals/nccl.md says how it is used and what fails how.
//
// Buckets are NCCL's memory on the GPU, registered with the communicator. All work is queued on a
// communication stream by a thread that does nothing else: after what the caller's compute stream
// holds at Launch(), and before what its compute stream is given after Wait(). Neither waits for
// the GPU; in a step nothing on the host does. So a handle is resolved when its work is queued, and
// what fails later comes out of the next Wait(), Launch() or status().
//
// In a ring NCCL adds, in an order of its own: the mean has the plan's bits with one or two ranks,
// and is within rounding beyond. When clipping, so is the norm. It does not tell what it sends, nor
// by which algorithm, so wire_stats() is all zero. With servers all of that is ours: the plan's
// bits for any number of ranks, and what is handed to NCCL to be sent or received is counted.
//
// Errors: INVALID_ARGUMENT for options out of range, without a GPU or NCCL, or for servers with
// more ranks than GpuApi::FoldMean() has operands.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateNcclGradientSync(const NcclOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_GRADIENT_SYNC_H_
