// A stage's part of one step.

#ifndef GRADSYNC_WORKER_PIPELINE_STAGE_STEP_H_
#define GRADSYNC_WORKER_PIPELINE_STAGE_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/pipeline_schedule.h"
#include "worker/pipeline/stage_channel.h"

namespace gradsync {

// Where the autograd graph of a stage begins: takes what backward through a stage has to say of its
// input.
//
// The input as a leaf that requires a gradient would do almost the same, but for two things: a
// stage that begins with an operation in place fails on a leaf, and a leaf's gradient is laid out
// as the leaf, which the gradient inside an uncut model need not be.
//
// Not thread-safe.
class StageInlet {
 public:
  // `received`, a floating-point tensor of which nobody else needs the values.
  explicit StageInlet(const at::Tensor& received);

  // To compute with: shares the memory of `received`, and may be changed in place.
  const at::Tensor& input() const { return input_; }

  // After backward; undefined where the stage's output does not depend on its input. The same bits
  // and strides as in the uncut model.
  at::Tensor gradient() const { return *gradient_; }

 private:
  const std::shared_ptr<at::Tensor> gradient_ = std::make_shared<at::Tensor>();
  at::Tensor input_;
};

// What a stage computes. Functions that return no status may throw what LibTorch throws.
struct StageWork {
  // Before each forward, micro-batches in order: what the model's input is, which the first stage
  // alone looks at.
  std::function<absl::StatusOr<at::Tensor>(int64_t micro_batch)> begin;

  // Before each forward and each backward, which may compute a part of forward again: makes what is
  // random that of this micro-batch.
  std::function<void(int64_t micro_batch)> seed;

  // The stage's blocks.
  std::function<at::Tensor(const at::Tensor& input)> forward;

  // The last stage: what backward begins from, a scalar, by the output of the micro-batch that
  // begin() was called for last.
  std::function<at::Tensor(const at::Tensor& output)> objective;

  // The last stage, after its last forward: what all stages are to know of the step, a tensor of
  // float.
  std::function<at::Tensor()> figures;

  // Calls `run`, which runs one backward; `last`: the step's last.
  std::function<absl::Status(bool last, const std::function<void()>& run)> backward;
};

// Where a stage's time went; what begin() takes is not in it.
struct StageTimes {
  absl::Duration forward;
  absl::Duration backward;
  absl::Duration waited;  // for neighbours
};

// What the channel's stage does next in `step`, in the order that `order` allows: waits until there is
// something. Errors: those of StageChannel::AwaitEither().
absl::StatusOr<StageAction> NextAction(StageChannel& channel, const StageOrder& order, int64_t step,
                                       Deadline deadline);

// Computes forward and backward of the step's micro-batches as the schedule says, and returns the
// last stage's figures. A micro-batch's graph lives from its forward to its backward. A neighbour
// that is silent for longer than `timeout` fails the job. Errors: those of StageChannel and of `work`;
// INTERNAL when LibTorch throws.
absl::StatusOr<at::Tensor> RunStageStep(StageChannel& channel, PipelineSchedule schedule,
                                        int64_t step, int64_t micro_batches, const StageWork& work,
                                        absl::Duration timeout, StageTimes* times);

// One batch through all stages, forward only, in an evaluation; the first stage is never more than
// two batches ahead of its successor. `input` is the first stage's. Returns the stage's output.
// `number` tells batches apart: every rank counts up alike. Errors: those of StageChannel; INTERNAL
// when LibTorch throws.
absl::StatusOr<at::Tensor> PassTestBatch(
    StageChannel& channel, int64_t number, const at::Tensor& input,
    const std::function<at::Tensor(const at::Tensor& input)>& forward, absl::Duration timeout);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_STAGE_STEP_H_
