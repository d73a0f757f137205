#include "worker/models/loss.h"

#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Reduction.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/argmax.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/eq.h"
#include "ATen/ops/gather.h"
#include "ATen/ops/logical_and.h"
#include "ATen/ops/max.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/where.h"
#include "absl/status/statusor.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  TORCH_CHECK(result.ok(), result.status().ToString());
  return *std::move(result);
}

// Of each row of the whole logits, the largest logit and its class; both [N].
struct Largest {
  at::Tensor logit;
  at::Tensor classes;
};

// Of equal ones the first counts, as in argmax. A class is sent as a float, which is exact below
// 2^24.
Largest FindLargest(const at::Tensor& logits, SliceExchange& exchange) {
  const at::Tensor logit = std::get<0>(at::max(logits, -1));
  const at::Tensor place = at::argmax(logits, -1) + logits.size(1) * exchange.slice();
  const std::vector<at::Tensor> all =
      ValueOrThrow(exchange.Gather(at::stack({logit, place.to(at::kFloat)})));
  Largest largest = {all[0][0], all[0][1]};
  for (size_t i = 1; i < all.size(); ++i) {
    const at::Tensor larger = all[i][0].gt(largest.logit);
    largest.classes = at::where(larger, all[i][1], largest.classes);
    largest.logit = at::where(larger, all[i][0], largest.logit);
  }
  largest.classes = largest.classes.to(at::kLong);
  return largest;
}

// The mean over rows of log(sum of exp) - (1 - s) * target - s * mean, of logits less the largest.
struct LossFunction : public torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& largest, const at::Tensor& labels, double smoothing,
                            SliceExchange* exchange) {
    const int64_t classes = logits.size(1);
    const at::Tensor own = labels - classes * exchange->slice();
    const at::Tensor here = at::logical_and(own.ge(0), own.lt(classes));
    const at::Tensor place = own.clamp(0, classes - 1).unsqueeze(1);
    const at::Tensor below = logits - largest.unsqueeze(1);
    at::Tensor exponentials = below.exp();
    const at::Tensor target = at::gather(below, 1, place).squeeze(1).masked_fill(~here, 0);
    std::vector<at::Tensor> rows = {exponentials.sum(-1), target};
    if (smoothing > 0) rows.push_back(below.sum(-1));
    const at::Tensor sums = ValueOrThrow(exchange->Sum(at::stack(rows)));
    at::Tensor loss = sums[0].log() - sums[1] * (1 - smoothing);
    const double share = smoothing / static_cast<double>(classes * exchange->slices());
    if (smoothing > 0) loss = loss - sums[2] * share;
    context->save_for_backward({exponentials.div_(sums[0].unsqueeze(1)), place, here});
    context->saved_data["smoothing"] = smoothing;
    context->saved_data["share"] = share;
    return loss.mean();
  }

  // softmax - (1 - s) at the target - s / K everywhere, over the number of rows.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<at::Tensor> saved = context->get_saved_variables();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    const at::Tensor at_target = saved[2].to(saved[0].scalar_type()) * (smoothing - 1);
    at::Tensor gradient = saved[0].clone();
    gradient.scatter_add_(1, saved[1], at_target.unsqueeze(1));
    if (smoothing > 0) gradient.sub_(context->saved_data["share"].toDouble());
    gradient.mul_(gradients[0] / static_cast<double>(gradient.size(0)));
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                        double label_smoothing) {
  const bool positions = logits.dim() == 3;
  return at::cross_entropy_loss(positions ? logits.flatten(0, 1) : logits,
                                positions ? labels.flatten() : labels, /*weight=*/{},
                                at::Reduction::Mean, /*ignore_index=*/-100, label_smoothing);
}

at::Tensor CorrectPredictions(const at::Tensor& logits, const at::Tensor& labels) {
  c10::NoGradGuard no_grad;
  return at::sum(at::eq(at::argmax(logits, -1), labels));
}

int64_t CountCorrect(const at::Tensor& logits, const at::Tensor& labels) {
  return CorrectPredictions(logits, labels).item<int64_t>();
}

SlicedLoss SlicedCrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                              double label_smoothing, SliceExchange& exchange) {
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor targets = labels.flatten();
  Largest largest;
  SlicedLoss result;
  {
    const c10::NoGradGuard no_grad;
    largest = FindLargest(rows.detach(), exchange);
    result.correct = at::sum(at::eq(largest.classes, targets));
  }
  result.loss = LossFunction::apply(rows, largest.logit, targets, label_smoothing, &exchange);
  return result;
}

}  // namespace gradsync
