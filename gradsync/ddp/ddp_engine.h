// A torch module over any GradientSync: what gradsync/ddp.h and the trainer stand on.
//
//   absl::StatusOr<std::unique_ptr<DdpEngine>> ddp =
//       DdpEngine::Create(model.ptr(), sync, side_channel, options);
//   for (StepOptions step{1, 0.1}; step.step <= steps; ++step.step) {  // number, learning rate
//     GS_RETURN_IF_ERROR((*ddp)->BeginStep(step));
//     loss(model(inputs), targets).backward();  // buckets leave while this runs
//     GS_RETURN_IF_ERROR((*ddp)->FinishStep(Deadline::In(absl::Seconds(60))));
//   }
//
// `sync` is this rank's GradientSync (parameter servers, a ring, none), `side_channel` its
// SideChannel. There is no optimizer in the loop and no zero_grad(): FinishStep() has updated the
// parameters when it returns, and each step overwrites the gradients. An optimizer of the caller's:
// DdpEngineOptions::updates.

#ifndef GRADSYNC_GRADSYNC_DDP_DDP_ENGINE_H_
#define GRADSYNC_GRADSYNC_DDP_DDP_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"
#include "core/plan/step_order.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/bucket_reducer.h"
#include "gradsync/ddp/captured_step.h"
#include "gradsync/ddp/ddp_options.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gradsync/ddp/parameter_gathers.h"
#include "gradsync/ddp/step_exchange.h"
#include "gradsync/ddp/weight_copies.h"

namespace gradsync {

// Makes a torch module train over any GradientSync: after each step all ranks hold the parameters
// that one process would have that trained on all ranks' batches together, and all of them the same
// bits.
//
// While it exists, the module's trainable parameters and their .grad are views of the backend's
// buckets. They stay so, and stay valid, afterwards. The module must not be moved, converted or
// reassigned, nor its .grad be replaced or set to none; that is found at the next step. Every
// trainable parameter must get exactly one gradient per step, under every rank's data; one that
// does not is an error that names it.
//
// On a GPU (GradientSync::gpu()) nothing of a step waits for the device: buckets leave in the order
// of the stream on which autograd runs the hooks of their last gradient, and parameters are updated
// on the current stream of the thread that calls FinishStep(). Forward and backward must run on
// that one stream. Buffers, hashes and state pass through the host.
//
// Not thread-safe: one thread runs the loop (backward's own threads are fine). Create(),
// FinishStep() and the methods that take a deadline wait for peers; nothing else does. No method
// throws.
//
// Errors, everywhere: those of GradientSync, and INVALID_ARGUMENT or FAILED_PRECONDITION for
// misuse, saying what was expected. After an error in a step the group is aborted with it, so that
// no peer waits, and every later call returns it.
class DdpEngine {
 public:
  // Collective. `module` on the device of sync->gpu(), the CPU without one, with fp32 parameters;
  // all ranks' modules alike, their values rank 0's afterwards. `sync` must be new and unbound.
  // `side_channel` says which rank this is, of how many; null: there is one worker. Both must
  // outlive the result. When any rank's module or options are refused, all ranks return: that one
  // its own error, the others ABORTED naming it. Errors: INVALID_ARGUMENT naming a parameter or
  // option; FAILED_PRECONDITION when modules or options differ between ranks.
  static absl::StatusOr<std::unique_ptr<DdpEngine>> Create(
      std::shared_ptr<torch::nn::Module> module, GradientSync* sync, SideChannel* side_channel,
      DdpEngineOptions options);

  // Leaves the parameters where they are. In the middle of a step, the group is aborted with
  // CANCELLED.
  ~DdpEngine();

  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  // Before the forward whose backward ends the step. Does not wait unless
  // broadcast_buffers_each_step. Errors: FAILED_PRECONDITION naming a parameter or gradient that
  // left its bucket; INVALID_ARGUMENT for step options.
  absl::Status BeginStep(const StepOptions& step);

  // On a GPU, between steps: captures what `forward_backward` queues, forward, loss and the one
  // backward of a step, as a graph. It calls neither BeginStep() nor FinishStep() and must be
  // capturable: everything on the current stream, which is not LibTorch's first
  // (GpuApi::UseOwnComputeStream(), before Create()), inputs and loss in memory that stays, no wait
  // for the device, shapes and code that some steps ran before. Nothing is computed yet. A second
  // call replaces the graph.
  // Errors: FAILED_PRECONDITION without a GPU; those of `forward_backward`; INTERNAL when LibTorch
  // or CUDA cannot capture it. No peer notices them, and steps without a graph go on.
  absl::Status Capture(const std::function<absl::Status()>& forward_backward);

  // A step's BeginStep(), forward and backward by one launch of the captured graph; FinishStep()
  // follows. Buckets are exchanged while the graph still runs. Replayed steps and others may take
  // turns. Errors: as BeginStep(); FAILED_PRECONDITION without a successful Capture().
  absl::Status ReplayStep(const StepOptions& step);

  // After backward. On success the parameters are updated.
  // Errors: INVALID_ARGUMENT naming parameters with no gradient or several; DEADLINE_EXCEEDED
  // naming the bucket.
  absl::Status FinishStep(Deadline deadline);

  // With on_backward: a step in which this rank has no gradients; they count as zero, but for what
  // NoSync() has added up. On success the step is done here, so all ranks have begun it. Waits for a
  // GPU. Errors: those of FinishStep().
  absl::Status StepOfZeros(Deadline deadline);

  // With on_backward, between steps: what the steps to come have besides their numbers, which are
  // consecutive. Without a call lr is 0. What is wrong with `step` the next step says.
  void SetNextSteps(const StepOptions& step) { next_ = step; }
  const StepOptions& next_steps() const { return next_; }

  // The number of the step that began last; 0 before the first.
  int64_t step() const { return exchange_->step().step; }

  // With units: waits until the parameters of the turn's unit are here, for its forward or its
  // backward; those of the unit after it are on their way then (core/plan/step_order.h). Of the
  // unit that was needed before nothing is used any more, unless it is one of these two. All ranks
  // call it alike. Errors: those of GradientSync::Gather().
  absl::Status GatherUnit(UnitTurn turn, Deadline deadline);

  // The copy of a parameter of this name among DdpEngineOptions::copies, a leaf of autograd that has its
  // values, rounded, when Create(), FinishStep(), Settle() or ImportState() has returned; undefined
  // for any other. Hooks on it are refused in backward.
  at::Tensor CopyOf(const std::string& name) const;

  // Between steps, after the caller has changed parameters: rounds the copies again.
  absl::Status RefreshCopies();

  // Whether owners alone keep parameters (DdpEngineOptions::units).
  bool sharded() const { return gathers_ != nullptr; }

  // Collective, between steps, with units: calls `visit` for each trainable parameter in the
  // module's order, which has its values then.
  absl::Status VisitParameters(
      const std::function<absl::Status(const std::string& name, const at::Tensor& parameter)>&
          visit,
      Deadline deadline);

  // The same as ParamsSha256(), with units.
  absl::StatusOr<std::string> GatheredSha256(Deadline deadline);

  // Collective, after the last step, and before evaluating or saving: blocks until all ranks have
  // come, even after different numbers of steps, and leaves the same parameters on all. Only under
  // ssp and asp (docs/use/consistency.md) is there something to wait for.
  absl::Status Settle(Deadline deadline);

  // Backwards while a guard lives only add up gradients, for micro-batches. They count for the step
  // that is under way or begins next, whose last backward must run without a guard. The mean over
  // workers is taken of the *sum* over micro-batches: divide the loss by their number, as in
  // PyTorch.
  class NoSyncGuard {
   public:
    explicit NoSyncGuard(BucketReducer* reducer) : reducer_(reducer) { reducer_->EnterNoSync(); }
    ~NoSyncGuard() { reducer_->LeaveNoSync(); }
    NoSyncGuard(const NoSyncGuard&) = delete;
    NoSyncGuard& operator=(const NoSyncGuard&) = delete;

   private:
    BucketReducer* const reducer_;
  };
  [[nodiscard]] NoSyncGuard NoSync() { return NoSyncGuard(reducer_.get()); }

  // The same for some parameters, in order: for threads that each run backward of a part of the
  // module, and not all of the same micro-batch. BeginStep() comes before all of them, and a thread
  // may make and end its guard while others run backward.
  class PartNoSyncGuard {
   public:
    // `parameters`, indices into plan().tensors(), must outlive it.
    PartNoSyncGuard(BucketReducer* reducer, const std::vector<int>& parameters)
        : reducer_(reducer), parameters_(parameters) {
      reducer_->EnterNoSync(parameters_);
    }
    ~PartNoSyncGuard() { reducer_->LeaveNoSync(parameters_); }
    PartNoSyncGuard(const PartNoSyncGuard&) = delete;
    PartNoSyncGuard& operator=(const PartNoSyncGuard&) = delete;

   private:
    BucketReducer* const reducer_;
    const std::vector<int>& parameters_;
  };
  [[nodiscard]] PartNoSyncGuard NoSync(const std::vector<int>& parameters) {
    return PartNoSyncGuard(reducer_.get(), parameters);
  }

  // Collective, between steps: all ranks' buffers become rank `source`'s. Call it before evaluating.
  absl::Status BroadcastBuffers(Deadline deadline, int source = 0);

  // The same for the parameters, where workers update them: for ranks whose optimizers have not done
  // the same steps. From another rank than 0 through the side channel, which takes longer.
  absl::Status BroadcastParameters(Deadline deadline, int source);

  // Collective, between steps: the optimizer's state, whole on every rank, whoever updates. Any
  // other wrapper of the same module can import it, whatever its backend, update site and number of
  // servers.
  absl::StatusOr<OptimizerState> ExportState(Deadline deadline);

  // Collective, between steps; every rank passes the same. `skipped_steps`: how many steps, besides
  // the optimizer's state.step, were skipped() before it was exported; the next step must have a
  // number above the sum of both. Errors: INVALID_ARGUMENT when a name, slot or size does not fit
  // the plan.
  absl::Status ImportState(const OptimizerState& state, Deadline deadline,
                           int64_t skipped_steps = 0);

  // See FlatParameters::Sha256(). Equal on all ranks after every step.
  std::string ParamsSha256() const { return parameters_.Sha256(); }

  const Plan& plan() const { return plan_; }
  const FlatParameters& parameters() const { return parameters_; }

  // Of the last FinishStep().
  const StepTiming& timing() const { return exchange_->timing(); }

  // StepTiming::exposed of that very step, where it is known: on a GPU once that has done the step,
  // while at most StreamTimer::kSteps have begun since; without a GPU that of the last one. Errors:
  // those of GpuApi.
  absl::StatusOr<absl::optional<absl::Duration>> Exposed(int64_t step) const {
    return exchange_->Exposed(step);
  }

  // Norm of the mean gradient before clipping, of the last FinishStep() with max_norm or
  // skip_nonfinite_steps under kWorker; 0 before. On a GPU, of the latest one that is done there.
  double grad_norm() const { return exchange_->grad_norm(); }

  // Whether the last FinishStep() left the parameters as they were (skip_nonfinite_steps). To the
  // optimizer (Adam's bias correction, ExportState()) such a step never was.
  bool skipped() const { return exchange_->skipped(); }

 private:
  DdpEngine(std::shared_ptr<torch::nn::Module> module, GradientSync* sync,
            SideChannel* side_channel, DdpEngineOptions options, Plan plan);

  absl::Status Bind(Deadline deadline);
  absl::Status BindParameters(Deadline deadline);
  absl::Status BeginInBackward();
  absl::Status BeginNextStep();
  absl::Status CheckBetweenSteps() const;
  void LaunchBucket(int bucket);
  bool MayLeave(int bucket);
  void BumpVersions() const;
  absl::Status Fail(absl::Status status);

  const std::shared_ptr<torch::nn::Module> module_;
  GradientSync* const sync_;
  SideChannel* const side_channel_;
  const DdpEngineOptions options_;
  const Plan plan_;
  std::vector<GradBucket> buckets_;
  FlatParameters parameters_;
  WeightCopies copies_;
  std::unique_ptr<ParameterGathers> gathers_;  // null without units
  std::unique_ptr<StepExchange> exchange_;     // after Create()
  bool in_step_ = false;
  StepOptions next_;         // but for its number
  absl::Status hook_error_;  // of options_.before_exchange, in the step under way
  std::unique_ptr<CapturedStep> captured_step_;  // null without a GPU
  bool capturing_ = false;
  absl::Status failed_;
  std::unique_ptr<BucketReducer> reducer_;  // last: its hooks use the above
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_DDP_ENGINE_H_
