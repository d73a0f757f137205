#include "pipeline/stage_step.h"

#include <exception>
#include <map>
#include <memory>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/monotonic_time.h"
#include "base/status_macros.h"
#include "pipeline/stage_inlet.h"
#include "pipeline/tensor_frames.h"
#include "torch/csrc/autograd/autograd.h"

namespace gradsync {
namespace {

using Neighbour = StageLink::Neighbour;

constexpr int64_t kTestBatchesAhead = 2;

// A micro-batch between its forward and its backward.
struct InFlightBatch {
  std::unique_ptr<StageInlet> inlet;  // null on the first stage
  at::Tensor output;                  // on the last stage the objective
};

class StepRun {
 public:
  StepRun(StageLink& link, int64_t step, int64_t micro_batches, const StageWork& work,
          absl::Duration timeout, StageTimes* times)
      : link_(link),
        step_(step),
        micro_batches_(micro_batches),
        work_(work),
        timeout_(timeout),
        times_(times) {}

  absl::Status Do(StageAction action) {
    return action.kind == StageAction::kForward ? Forward(action.micro_batch)
                                                : Backward(action.micro_batch);
  }

  const at::Tensor& figures() const { return figures_; }

 private:
  bool is_first() const { return link_.stage() == 0; }
  bool is_last() const { return link_.stage() + 1 == link_.stages(); }
  bool IsLast(int64_t micro_batch) const { return micro_batch + 1 == micro_batches_; }

  TensorKey Key(TensorKey::What what, int64_t micro_batch) const {
    return {what, step_, micro_batch};
  }

  absl::StatusOr<at::Tensor> Receive(Neighbour from, TensorKey::What what, int64_t micro_batch) {
    const MonotonicTime start = MonotonicTime::Now();
    absl::StatusOr<at::Tensor> tensor =
        link_.Receive(from, Key(what, micro_batch), Deadline::In(timeout_));
    times_->waited += MonotonicTime::Now() - start;
    return tensor;
  }

  // Runs what may throw, and adds up its time.
  absl::Status Compute(const std::function<void()>& run, absl::Duration* time) {
    const MonotonicTime start = MonotonicTime::Now();
    try {
      run();
    } catch (const std::exception& e) {
      return absl::InternalError(
          absl::StrCat("step ", step_, ", stage ", link_.stage(), ": LibTorch: ", e.what()));
    }
    *time += MonotonicTime::Now() - start;
    return absl::OkStatus();
  }

  absl::Status Forward(int64_t i) {
    GS_ASSIGN_OR_RETURN(at::Tensor input, work_.begin(i));
    InFlightBatch& batch = in_flight_[i];
    if (!is_first()) {
      GS_ASSIGN_OR_RETURN(const at::Tensor received,
                          Receive(Neighbour::kBefore, TensorKey::kActivation, i));
      batch.inlet = std::make_unique<StageInlet>(received);
      input = batch.inlet->input();
    }
    GS_RETURN_IF_ERROR(Compute(
        [&] {
          work_.seed(i);
          batch.output = work_.forward(input);
          if (is_last()) batch.output = work_.objective(batch.output);
          if (is_last() && IsLast(i)) figures_ = work_.figures();
        },
        &times_->forward));
    if (!is_last()) {
      link_.Send(Neighbour::kBehind, Key(TensorKey::kActivation, i), batch.output);
    } else if (IsLast(i) && !is_first()) {
      // Before the gradients, so that nobody waits for them.
      link_.Send(Neighbour::kBefore, Key(TensorKey::kFigures, 0), figures_);
    }
    return absl::OkStatus();
  }

  absl::Status Backward(int64_t i) {
    InFlightBatch batch = std::move(in_flight_[i]);
    in_flight_.erase(i);
    at::Tensor gradient;
    if (!is_last()) {
      GS_ASSIGN_OR_RETURN(gradient, Receive(Neighbour::kBehind, TensorKey::kGradient, i));
    }
    if (!is_last() && IsLast(i)) {
      GS_ASSIGN_OR_RETURN(figures_, Receive(Neighbour::kBehind, TensorKey::kFigures, 0));
      if (!is_first()) link_.Send(Neighbour::kBefore, Key(TensorKey::kFigures, 0), figures_);
    }
    absl::Status failed;
    const absl::Status ran = work_.backward(IsLast(i), [&] {
      failed = Compute(
          [&] {
            work_.seed(i);
            torch::autograd::backward({batch.output}, {gradient});
          },
          &times_->backward);
    });
    GS_RETURN_IF_ERROR(failed);
    GS_RETURN_IF_ERROR(ran);
    if (is_first()) return absl::OkStatus();
    if (!batch.inlet->gradient().defined()) {
      return absl::InternalError(
          absl::StrCat("stage ", link_.stage(), ": expected an output that depends on the input"));
    }
    link_.Send(Neighbour::kBefore, Key(TensorKey::kGradient, i), batch.inlet->gradient());
    return absl::OkStatus();
  }

  StageLink& link_;
  const int64_t step_;
  const int64_t micro_batches_;
  const StageWork& work_;
  const absl::Duration timeout_;
  StageTimes* const times_;
  std::map<int64_t, InFlightBatch> in_flight_;
  at::Tensor figures_;
};

}  // namespace

absl::StatusOr<at::Tensor> RunStageStep(StageLink& link, PipelineSchedule schedule, int64_t step,
                                        int64_t micro_batches, const StageWork& work,
                                        absl::Duration timeout, StageTimes* times) {
  StepRun run(link, step, micro_batches, work, timeout, times);
  for (StageAction action : ActionsOf(schedule, link.stages(), link.stage(), micro_batches)) {
    GS_RETURN_IF_ERROR(run.Do(action));
  }
  return run.figures();
}

absl::StatusOr<at::Tensor> PassTestBatch(
    StageLink& link, int64_t number, const at::Tensor& input,
    const std::function<at::Tensor(const at::Tensor& input)>& forward, absl::Duration timeout) {
  const bool is_first = link.stage() == 0;
  const bool is_last = link.stage() + 1 == link.stages();
  at::Tensor x = input;
  if (!is_first) {
    GS_ASSIGN_OR_RETURN(x, link.Receive(Neighbour::kBefore, {TensorKey::kTestInput, 0, number},
                                        Deadline::In(timeout)));
    link.Send(Neighbour::kBefore, {TensorKey::kTestCredit, 0, number}, at::empty({0}));
  }
  try {
    x = forward(x);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
  }
  if (is_last) return x;
  link.Send(Neighbour::kBehind, {TensorKey::kTestInput, 0, number}, x);
  if (number >= kTestBatchesAhead) {
    const TensorKey credit = {TensorKey::kTestCredit, 0, number - kTestBatchesAhead};
    GS_RETURN_IF_ERROR(link.Receive(Neighbour::kBehind, credit, Deadline::In(timeout)).status());
  }
  return x;
}

}  // namespace gradsync
