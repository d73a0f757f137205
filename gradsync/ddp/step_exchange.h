// The buckets of a step, from their launch to the updated parameters: who waits for them, for how
// long, and who updates. What computes the gradients, and when a caller may do what, is above it, in
// ddp_engine.h.

#ifndef GRADSYNC_GRADSYNC_DDP_STEP_EXCHANGE_H_
#define GRADSYNC_GRADSYNC_DDP_STEP_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/sync_handle.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/ddp_options.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gradsync/ddp/stream_timer.h"

namespace gradsync {

// The optimizer of UpdateSite::kWorker: every worker updates every parameter, with the arithmetic
// that owners use.
//
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

// Where FinishStep() spent its time.
struct StepTiming {
  // Waiting for buckets: communication that backward did not hide. On a GPU it is the time for
  // which the compute stream stood still, whatever the host did meanwhile, and that of the newest
  // step that the GPU has done (stream_timer.h), some steps before this one; zero before there is
  // one. See DdpEngine::Exposed().
  absl::Duration exposed;
  int64_t exposed_step = 0;  // of which step that is; 0: of none
  // The part of it that was spent in backward, waiting for memory that buckets share.
  absl::Duration in_backward;
  // The optimizer and clipping; zero when owners update. On a GPU: queueing them.
  absl::Duration update;
};

// One step after the other. Owns their handles, the optimizer where workers update, and the count of
// steps.
//
// Not thread-safe: MakeRoom() and Launch() are called in backward, one at a time, all else between
// backwards by the thread that runs the loop. Errors: those of GradientSync and of GpuApi; after one
// in a step the group is to be aborted.
class StepExchange {
 public:
  // `buckets` are those of the plan, as `sync` has them, and bound to `parameters`. All references,
  // and `sync`, must outlive the result. Errors: those of StreamTimer and of the optimizer.
  static absl::StatusOr<std::unique_ptr<StepExchange>> Create(
      const Plan& plan, const DdpEngineOptions& options, const std::vector<GradBucket>& buckets,
      const FlatParameters& parameters, GradientSync* sync);

  // Whether a step may be the next one. Errors: INVALID_ARGUMENT naming the option.
  absl::Status Check(const StepOptions& step) const;

  // No bucket of the step, which passed Check(), is launched yet.
  void Begin(const StepOptions& step);

  // In backward, before the first write to a bucket whose memory an earlier one of the step has:
  // waits until that one has resolved.
  absl::Status MakeRoom(int bucket);

  // In backward, or after it, in order: the gradients of the bucket are complete.
  void Launch(int bucket);

  // Backward is over: timing() is of this step from here on.
  void EndBackward();

  // Waits for all buckets that were launched and updates the parameters, unless owners do.
  absl::Status Complete(Deadline deadline);

  // Whether this rank updates the parameters, or its caller, and not the owners.
  bool updates_here() const { return sync_->update_site() == UpdateSite::kWorker; }

  // The step that began last.
  const StepOptions& step() const { return step_; }

  // These are DdpEngine's of the same names.
  const StepTiming& timing() const { return timing_; }
  absl::StatusOr<absl::optional<absl::Duration>> Exposed(int64_t step) const;
  double grad_norm() const { return optimizer_ != nullptr ? optimizer_->grad_norm() : 0; }
  bool skipped() const { return skipped_; }
  absl::StatusOr<OptimizerState> ExportState(Deadline deadline);
  absl::Status ImportState(const OptimizerState& state, Deadline deadline, int64_t skipped_steps);

 private:
  StepExchange(const Plan& plan, const DdpEngineOptions& options, const FlatParameters& parameters,
               GradientSync* sync)
      : plan_(plan), options_(options), parameters_(parameters), sync_(sync) {}

  absl::Status MakeOptimizer(const std::vector<GradBucket>& buckets);
  absl::Status CheckClipping(const StepOptions& step) const;
  StallNotice StallOf(int bucket) const;
  absl::Status WaitForBucket(int bucket, Deadline deadline);
  absl::Status UpdateBucket(int bucket);
  absl::Status UpdateByNorm();
  absl::Status ApplyNorm();

  const Plan& plan_;
  const DdpEngineOptions& options_;
  const FlatParameters& parameters_;
  GradientSync* const sync_;
  std::unique_ptr<WorkerOptimizer> optimizer_;  // null when owners update
  std::unique_ptr<StreamTimer> stream_timer_;   // null without a GPU
  StepOptions step_;                            // under way or done
  std::vector<SyncHandle> handles_;             // of this step, by bucket
  StepTiming timing_;
  absl::Duration room_wait_;  // in backward of this step, for buckets whose memory others need
  bool skipped_ = false;
  int64_t skipped_steps_ = 0;  // of step_.step
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_STEP_EXCHANGE_H_
