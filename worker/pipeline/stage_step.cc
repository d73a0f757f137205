#include "worker/pipeline/stage_step.h"

#include <exception>
#include <map>
#include <memory>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"
#include "worker/pipeline/tensor_frames.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a graph can own.
struct Holder : public torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<at::Tensor> gradient) : gradient(std::move(gradient)) {}

  const std::shared_ptr<at::Tensor> gradient;
};

struct InletFunction : public torch::autograd::Function<InletFunction> {
  // A detached tensor is neither the input nor a view of it in the eyes of autograd.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& leaf,
                            const c10::intrusive_ptr<Holder>& holder) {
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    return leaf.detach();
  }

  // Nothing goes on to the leaf.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->saved_data["holder"].toCapsule();
    *static_cast<const Holder&>(*held).gradient = gradients[0];
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

StageInlet::StageInlet(const at::Tensor& received) {
  const at::Tensor leaf = received.detach().requires_grad_(true);
  input_ = InletFunction::apply(leaf, c10::make_intrusive<Holder>(gradient_));
}

namespace {

using Neighbour = StageChannel::Neighbour;

constexpr int64_t kTestBatchesAhead = 2;

// A micro-batch between its forward and its backward.
struct InFlightBatch {
  std::unique_ptr<StageInlet> inlet;  // null on the first stage
  at::Tensor output;                  // on the last stage the objective
};

class StepRun {
 public:
  StepRun(StageChannel& channel, int64_t step, int64_t micro_batches, const StageWork& work,
          absl::Duration timeout, StageTimes* times)
      : channel_(channel),
        step_(step),
        micro_batches_(micro_batches),
        work_(work),
        timeout_(timeout),
        times_(times) {}

  absl::StatusOr<StageAction> Next(const StageOrder& order) {
    const MonotonicTime start = MonotonicTime::Now();
    absl::StatusOr<StageAction> next = NextAction(channel_, order, step_, Deadline::In(timeout_));
    times_->waited += MonotonicTime::Now() - start;
    return next;
  }

  absl::Status Do(StageAction action) {
    return action.kind == StageAction::kForward ? Forward(action.micro_batch)
                                                : Backward(action.micro_batch);
  }

  const at::Tensor& figures() const { return figures_; }

 private:
  bool is_first() const { return channel_.stage() == 0; }
  bool is_last() const { return channel_.stage() + 1 == channel_.stages(); }
  bool IsLast(int64_t micro_batch) const { return micro_batch + 1 == micro_batches_; }

  TensorKey Key(TensorKey::What what, int64_t micro_batch) const {
    return {what, step_, micro_batch};
  }

  absl::StatusOr<at::Tensor> Receive(Neighbour from, TensorKey::What what, int64_t micro_batch) {
    const MonotonicTime start = MonotonicTime::Now();
    absl::StatusOr<at::Tensor> tensor =
        channel_.Receive(from, Key(what, micro_batch), Deadline::In(timeout_));
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
          absl::StrCat("step ", step_, ", stage ", channel_.stage(), ": LibTorch: ", e.what()));
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
      channel_.Send(Neighbour::kBehind, Key(TensorKey::kActivation, i), batch.output);
    } else if (IsLast(i) && !is_first()) {
      // Before the gradients, so that nobody waits for them.
      channel_.Send(Neighbour::kBefore, Key(TensorKey::kFigures, 0), figures_);
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
      if (!is_first()) channel_.Send(Neighbour::kBefore, Key(TensorKey::kFigures, 0), figures_);
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
      return absl::InternalError(absl::StrCat("stage ", channel_.stage(),
                                              ": expected an output that depends on the input"));
    }
    channel_.Send(Neighbour::kBefore, Key(TensorKey::kGradient, i), batch.inlet->gradient());
    return absl::OkStatus();
  }

  StageChannel& channel_;
  const int64_t step_;
  const int64_t micro_batches_;
  const StageWork& work_;
  const absl::Duration timeout_;
  StageTimes* const times_;
  std::map<int64_t, InFlightBatch> in_flight_;
  at::Tensor figures_;
};

}  // namespace

absl::StatusOr<StageAction> NextAction(StageChannel& channel, const StageOrder& order, int64_t step,
                                       Deadline deadline) {
  if (!order.may_forward()) return order.backward();
  if (!order.may_backward()) return order.forward();
  const TensorKey gradient = {TensorKey::kGradient, step, order.backward().micro_batch};
  const bool is_last = channel.stage() + 1 == channel.stages();
  if (is_last || channel.IsHere(Neighbour::kBehind, gradient)) return order.backward();
  if (channel.stage() == 0) return order.forward();
  const TensorKey input = {TensorKey::kActivation, step, order.forward().micro_batch};
  GS_ASSIGN_OR_RETURN(const Neighbour from, channel.AwaitEither(input, gradient, deadline));
  return from == Neighbour::kBehind ? order.backward() : order.forward();
}

absl::StatusOr<at::Tensor> RunStageStep(StageChannel& channel, PipelineSchedule schedule,
                                        int64_t step, int64_t micro_batches, const StageWork& work,
                                        absl::Duration timeout, StageTimes* times) {
  StepRun run(channel, step, micro_batches, work, timeout, times);
  StageOrder order(schedule, channel.stages(), channel.stage(), micro_batches);
  while (!order.done()) {
    GS_ASSIGN_OR_RETURN(const StageAction action, run.Next(order));
    GS_RETURN_IF_ERROR(run.Do(action));
    order.Did(action.kind);
  }
  return run.figures();
}

absl::StatusOr<at::Tensor> PassTestBatch(
    StageChannel& channel, int64_t number, const at::Tensor& input,
    const std::function<at::Tensor(const at::Tensor& input)>& forward, absl::Duration timeout) {
  const bool is_first = channel.stage() == 0;
  const bool is_last = channel.stage() + 1 == channel.stages();
  at::Tensor x = input;
  if (!is_first) {
    GS_ASSIGN_OR_RETURN(x, channel.Receive(Neighbour::kBefore, {TensorKey::kTestInput, 0, number},
                                           Deadline::In(timeout)));
    channel.Send(Neighbour::kBefore, {TensorKey::kTestCredit, 0, number}, at::empty({0}));
  }
  try {
    x = forward(x);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
  }
  if (is_last) return x;
  channel.Send(Neighbour::kBehind, {TensorKey::kTestInput, 0, number}, x);
  if (number >= kTestBatchesAhead) {
    const TensorKey credit = {TensorKey::kTestCredit, 0, number - kTestBatchesAhead};
    GS_RETURN_IF_ERROR(channel.Receive(Neighbour::kBehind, credit, Deadline::In(timeout)).status());
  }
  return x;
}

}  // namespace gradsync
