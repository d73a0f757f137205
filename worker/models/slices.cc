#include "worker/models/slices.h"

#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/add.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/logical_or.h"
#include "ATen/ops/masked_fill.h"
#include "ATen/ops/stack.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The sizes of a part: of the first dimension that groups do not fill, one `slices`-th.
std::vector<int64_t> PartSizes(const at::Tensor& whole, int64_t groups, int64_t slices) {
  std::vector<int64_t> sizes = whole.sizes().vec();
  // With as many groups as rows it is the columns that are cut.
  const bool columns = sizes.size() > 1 && groups == sizes[0];
  sizes[columns ? 1 : 0] /= slices;
  return sizes;
}

// Of [B, T, width].
constexpr int64_t kSequence = 1;

template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  TORCH_CHECK(result.ok(), result.status().ToString());
  return *std::move(result);
}

at::Tensor GatherSequence(const at::Tensor& x, SliceExchange& exchange) {
  return at::cat(ValueOrThrow(exchange.Gather(x)), kSequence);
}

at::Tensor SumSequence(const at::Tensor& x, SliceExchange& exchange) {
  TORCH_CHECK(x.size(kSequence) % exchange.slices() == 0, "expected a sequence that ",
              exchange.slices(), " slices divide, found ", x.size(kSequence));
  return ValueOrThrow(exchange.SumPart(at::stack(x.chunk(exchange.slices(), kSequence))));
}

// What a graph keeps of `of`.
void Keep(const SliceOf& of, AutogradContext* context) {
  context->saved_data["exchange"] = reinterpret_cast<int64_t>(of.exchange);
  context->saved_data["splits"] = of.splits_sequence;
}

SliceOf Kept(AutogradContext* context) {
  return {reinterpret_cast<SliceExchange*>(context->saved_data["exchange"].toInt()),
          context->saved_data["splits"].toBool()};
}

struct EnterFunction : public torch::autograd::Function<EnterFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const SliceOf& of) {
    Keep(of, context);
    return of.splits_sequence ? GatherSequence(x, *of.exchange) : x;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const SliceOf of = Kept(context);
    const at::Tensor gradient = of.splits_sequence ? SumSequence(gradients[0], *of.exchange)
                                                   : ValueOrThrow(of.exchange->Sum(gradients[0]));
    return {gradient, at::Tensor()};
  }
};

struct LeaveFunction : public torch::autograd::Function<LeaveFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const SliceOf& of) {
    Keep(of, context);
    return of.splits_sequence ? SumSequence(x, *of.exchange) : ValueOrThrow(of.exchange->Sum(x));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const SliceOf of = Kept(context);
    return {of.splits_sequence ? GatherSequence(gradients[0], *of.exchange) : gradients[0],
            at::Tensor()};
  }
};

}  // namespace

absl::Status SliceModel(Model& model, const SliceOf& of) {
  auto* const sliceable = dynamic_cast<SliceableModel*>(&model);
  if (sliceable == nullptr) {
    return absl::InvalidArgumentError("expected a model that has slices (gpt)");
  }
  const int64_t slices = of.exchange->slices();
  const c10::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  for (const auto& [name, groups] : sliceable->SlicedParameters()) {
    at::Tensor* const whole = parameters.find(name);
    if (whole == nullptr || whole->numel() % (groups * slices) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", name, ": expected one that ", slices, " slices divide"));
    }
    const at::Tensor part =
        whole->detach().reshape({groups, slices, -1}).select(1, of.exchange->slice());
    whole->set_data(part.reshape(PartSizes(*whole, groups, slices)).clone());
  }
  sliceable->BecomeSlice(of);
  return absl::OkStatus();
}

at::Tensor JoinParts(const std::vector<at::Tensor>& parts, int64_t groups) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  rows.reserve(parts.size());
  for (const at::Tensor& part : parts) rows.push_back(part.detach().reshape({groups, -1}));
  return at::cat(rows, 1).flatten();
}

at::Tensor EnterSlices(const at::Tensor& x, const SliceOf& of) {
  return of.whole() ? x : EnterFunction::apply(x, of);
}

at::Tensor LeaveSlices(const at::Tensor& x, const SliceOf& of) {
  return of.whole() ? x : LeaveFunction::apply(x, of);
}

at::Tensor SharedBySlices(const at::Tensor& parameter, const SliceOf& of) {
  if (!of.has_part_of_sequence()) return parameter;
  return EnterFunction::apply(parameter, SliceOf{of.exchange, /*splits_sequence=*/false});
}

at::Tensor LinearOfSlices(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const SliceOf& of) {
  if (of.whole()) return at::linear(x, weight, bias);
  const at::Tensor sum = LeaveSlices(at::linear(x, weight), of);
  return at::add(sum, SharedBySlices(bias, of).to(sum.scalar_type()));
}

at::Tensor EmbeddingOfSlices(const at::Tensor& weight, const at::Tensor& indices,
                             const SliceOf& of) {
  if (of.whole()) return at::embedding(weight, indices);
  const int64_t rows = weight.size(0);
  const int64_t first = rows * of.exchange->slice();
  const at::Tensor own = indices - first;
  const at::Tensor elsewhere = at::logical_or(own.lt(0), own.ge(rows));
  const at::Tensor found = at::embedding(weight, at::masked_fill(own, elsewhere, 0));
  return LeaveSlices(at::masked_fill(found, elsewhere.unsqueeze(-1), 0), of);
}

at::Tensor NormaliseSlice(const LayerNorm& norm, const at::Tensor& x, const SliceOf& of) {
  return norm.Normalise(x, SharedBySlices(norm.weight(), of), SharedBySlices(norm.bias(), of));
}

at::Tensor DropSlice(const Dropout& dropout, const at::Tensor& x, const SliceOf& of) {
  if (!of.has_part_of_sequence()) return dropout.forward(x);
  return dropout.ForwardPart(x, kSequence, of.exchange->slice(), of.exchange->slices());
}

}  // namespace gradsync
