// The optimizer of UpdateSite::kWorker: every worker updates every parameter, with the arithmetic
// that owners use.

#ifndef GRADSYNC_DDP_WORKER_OPTIMIZER_H_
#define GRADSYNC_DDP_WORKER_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "optim/optimizer_state.h"
#include "optim/range_optimizer.h"
#include "plan/plan.h"
#include "plan/step_options.h"
#include "sync/flat_buckets.h"

namespace gradsync {

// Updates flat buckets in place from the mean gradients in them, bit for bit as the plan's owners
// would. Holds the optimizer's state of all parameters.
//
// Not thread-safe; works on LibTorch's intra-op threads, whose number does not change the result.
// Nothing waits for peers.
class WorkerOptimizer {
 public:
  // `memory` must stay valid. One entry per bucket of the plan.
  WorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory);

  // Scales the gradients of all buckets so that their global 2-norm is at most `max_norm`, and
  // returns the norm before. The norm is the root of the sum, over buckets and slots in order, of
  // each chunk's sum of squares in double. The scale max_norm / (norm + 1e-6) is that of
  // torch::nn::utils::clip_grad_norm_; where that multiplies by 1, nothing is done here.
  double ClipGradients(double max_norm);

  // Updates the parameters of one bucket.
  void Update(const StepOptions& step, int bucket);

  // The state by parameter name, after step number `step`.
  OptimizerState Export(int64_t step) const;

  // Replaces the state; what `state` does not have starts from the beginning.
  // Errors: INVALID_ARGUMENT when a name, slot or size does not fit the plan. Nothing is changed
  // then.
  absl::Status Import(const OptimizerState& state);

 private:
  // A part of a bucket that one thread updates.
  struct Piece {
    ElementRange range;
    RangeOptimizer optimizer;
  };

  const Plan plan_;
  const std::vector<BucketMemory> memory_;
  const std::vector<std::string> slot_names_;
  std::vector<std::vector<Piece>> pieces_;  // by bucket
};

}  // namespace gradsync

#endif  // GRADSYNC_DDP_WORKER_OPTIMIZER_H_
