// The optimizer of UpdateSite::kWorker: every worker updates every parameter, with the arithmetic
// that owners use.

#ifndef GRADSYNC_GRADSYNC_DDP_WORKER_OPTIMIZER_H_
#define GRADSYNC_GRADSYNC_DDP_WORKER_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Updates flat buckets in place from the mean gradients in them, bit for bit as the plan's owners
// would. Holds the optimizer's state of all parameters.
//
// Not thread-safe. Nothing waits for peers. Errors: on the CPU those of Import() alone; on a GPU
// (device_worker_optimizer.h) those of GpuApi.
class WorkerOptimizer {
 public:
  virtual ~WorkerOptimizer() = default;

  // The global 2-norm of the gradients of all buckets: the root of the sum, over buckets and slots
  // in order, of each chunk's sum of squares in double, which is finite if and only if all
  // gradients are. Waits for a GPU.
  virtual absl::StatusOr<double> GradientNorm() = 0;

  // Scales the gradients of all buckets so that their norm is at most `max_norm`. The scale
  // max_norm / (norm + 1e-6) is that of torch::nn::utils::clip_grad_norm_; where that multiplies by
  // 1, nothing changes here.
  virtual absl::Status ClipGradients(double max_norm) = 0;

  // The last norm that GradientNorm() or ClipGradients() found; 0 before the first.
  virtual double grad_norm() const = 0;

  // Updates the parameters of one bucket.
  virtual absl::Status Update(const StepOptions& step, int bucket) = 0;

  // The state by parameter name, after step number `step`.
  virtual absl::StatusOr<OptimizerState> Export(int64_t step) const = 0;

  // Replaces the state; what `state` does not have starts from the beginning.
  // Errors: INVALID_ARGUMENT when a name, slot or size does not fit the plan. Nothing is changed
  // then.
  virtual absl::Status Import(const OptimizerState& state) = 0;
};

// For buckets in memory of the host. Works on LibTorch's intra-op threads, whose number does not
// change the result. `memory`, with one entry per bucket of the plan, must stay valid.
std::unique_ptr<WorkerOptimizer> CreateWorkerOptimizer(const Plan& plan,
                                                       std::vector<BucketMemory> memory);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_WORKER_OPTIMIZER_H_
