#include "core/pipeline/stage_inlet.h"

#include <utility>

#include "ATen/core/ivalue.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"

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

}  // namespace gradsync
