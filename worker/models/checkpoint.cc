#include "worker/models/checkpoint.h"

#include <utility>

#include "ATen/autocast_mode.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/empty.h"
#include "c10/core/GradMode.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"
#include "worker/models/autocast_state.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a graph can own.
struct Owner : public torch::CustomClassHolder {
  Owner(std::shared_ptr<const Recomputed> block, c10::DeviceType type)
      : block(std::move(block)), device(type), autocast(GetAutocast(type)) {}

  const std::shared_ptr<const Recomputed> block;
  const c10::DeviceType device;
  const AutocastState autocast;  // as it was in forward
};

// Tells the block's norms that what runs is a recomputation, also when it throws.
class Recomputing {
 public:
  explicit Recomputing(const Recomputed& block) : block_(block) { Set(true); }
  ~Recomputing() { Set(false); }
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  void Set(bool recomputing) {
    for (const auto& norm : block_.norms) norm->set_recomputing(recomputing);
  }

  const Recomputed& block_;
};

// Autocast of a thread of backward, which has none of its own.
class ScopedAutocast {
 public:
  ScopedAutocast(c10::DeviceType device, const AutocastState& state)
      : device_(device), before_(GetAutocast(device)) {
    SetAutocast(device, state);
    at::autocast::increment_nesting();
  }
  ~ScopedAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    SetAutocast(device_, before_);
  }
  ScopedAutocast(const ScopedAutocast&) = delete;
  ScopedAutocast& operator=(const ScopedAutocast&) = delete;

 private:
  const c10::DeviceType device_;
  const AutocastState before_;
};

struct RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
  // `anchor` needs a gradient, so that the output has a graph even where `x` needs none.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const c10::intrusive_ptr<Owner>& owner) {
    context->save_for_backward({x});
    context->saved_data["needs_gradient"] = x.requires_grad();
    context->saved_data["owner"] = c10::IValue::make_capsule(owner);
    return owner->block->forward(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->saved_data["owner"].toCapsule();
    const Owner& owner = static_cast<const Owner&>(*held);
    at::Tensor input = context->get_saved_variables()[0].detach();
    input.requires_grad_(context->saved_data["needs_gradient"].toBool());
    {
      at::Tensor output;
      {
        const c10::AutoGradMode with_graph(true);
        const Recomputing recomputing(*owner.block);
        const ScopedAutocast autocast(owner.device, owner.autocast);
        output = owner.block->forward(input);
      }
      torch::autograd::backward({output}, {gradients[0]});
    }
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor RunRecomputed(std::shared_ptr<const Recomputed> block, const at::Tensor& x) {
  const at::Tensor anchor = at::empty({0}, x.options().dtype(at::kFloat)).requires_grad_(true);
  auto owner = c10::make_intrusive<Owner>(std::move(block), x.device().type());
  return RecomputeFunction::apply(x, anchor, owner);
}

}  // namespace gradsync
