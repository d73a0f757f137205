#ifndef GRADSYNC_ALLREDUCE_IPC_GRADIENT_SYNC_H_
#define GRADSYNC_ALLREDUCE_IPC_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/gpu/gpu_api.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct IpcOptions {
  // `group.timeout` is how long an exchange may take that could begin, and how long a rank's
  // process may stand still.
  WorkerGroup group;
  // kOwner: owners keep their part of the optimizer's state, update, and store the parameters.
  UpdateSite update_site = UpdateSite::kWorker;
  // Who folds. A ring's ranks each their chunks of every stripe; or, as colocated parameter servers
  // on GPUs, the first `owners` ranks (0: all), which share the chunks as servers do.
  bool servers = false;
  int owners = 0;
  // This rank's GPU. Two ranks may have the same one.
  std::shared_ptr<GpuApi> gpu;
  // After a failure: how long other ranks have to hear of it before this one frees its stream, and
  // how long whoever waits for the failure waits for that stream.
  absl::Duration hearing = absl::Seconds(1);
  absl::Duration abort_bound = absl::Seconds(5);
};

// A GradientSync for ranks of one host with a GPU each, or sharing one: what ring and servers over
// shared memory are on the host. Buckets are memory of the GPU that all ranks have mapped (CUDA
// IPC), and the owner of a chunk folds all ranks' gradients where they lie and stores the mean into
// all of them, in one kernel per bucket. The order is the plan's, so the bits are the host's, with
// any number of ranks and owners. docs/internals/cuda_ipc.md says how.
//
// Ranks wait for each other in the order of their streams, by flags in memory of the host; in a
// step no thread waits, and a handle is resolved when its work is queued, as over NCCL. So what
// fails later comes out of the next Wait(), Launch() or status().
//
// Ranks are processes: CUDA maps no memory into the process that exported it.
//
// Errors: INVALID_ARGUMENT for options out of range, or without a GPU.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateIpcGradientSync(const IpcOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_GRADIENT_SYNC_H_
