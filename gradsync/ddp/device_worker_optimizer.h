// UpdateSite::kWorker on a GPU.

#ifndef GRADSYNC_GRADSYNC_DDP_DEVICE_WORKER_OPTIMIZER_H_
#define GRADSYNC_GRADSYNC_DDP_DEVICE_WORKER_OPTIMIZER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/step_exchange.h"

namespace gradsync {

// A WorkerOptimizer for buckets in the memory of `gpu`, with the same bits.
//
// ClipGradients() and Update() queue their work on the compute stream of the calling thread and
// return: the host waits for nothing. Clipping launches one kernel for the sums of squares of all
// chunks and one for each bucket; the sums are folded, and the factor found, by a callback on the
// host, for which the stream waits a moment. So grad_norm() is that of the latest clipping which
// the GPU has done. GradientNorm(), and Export() and Import() for copies of the state, wait for the
// GPU.
//
// Errors, of creation too: those of GpuApi.
absl::StatusOr<std::unique_ptr<WorkerOptimizer>> CreateDeviceWorkerOptimizer(
    const Plan& plan, std::vector<BucketMemory> memory, std::shared_ptr<GpuApi> gpu);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_DEVICE_WORKER_OPTIMIZER_H_
