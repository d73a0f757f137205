#include <cstdint>
#include <optional>
#include <utility>

#include "ATen/cuda/CUDAContextLight.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGuard.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"
#include "worker/models/image_kernels.h"
#include "worker/models/image_memory.h"
#include "worker/models/norm_kernels.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool IsVector(const at::Tensor& t, const at::Tensor& x) {
  return t.defined() && t.device() == x.device() && t.scalar_type() == at::kFloat &&
         t.is_contiguous() && t.numel() == x.size(1) && IsAligned(t);
}

NormShape ShapeOf(const at::Tensor& x) {
  NormShape shape;
  shape.type = NormTypeOf(x);
  shape.channels = x.size(1);
  shape.rows = x.numel() / shape.channels;
  return shape;
}

int Multiprocessors() { return at::cuda::getCurrentDeviceProperties()->multiProcessorCount; }

at::Tensor FloatsBeside(const at::Tensor& x, size_t count) {
  return at::empty({static_cast<int64_t>(count)}, x.options().dtype(at::kFloat));
}

void* Memory(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
float* FloatsOf(const at::Tensor& t) { return t.data_ptr<float>(); }

// What a forked output's second user leaves for the backward of the norm that made it.
struct SecondGradient : public torch::CustomClassHolder {
  at::Tensor value;
};

constexpr char kSecond[] = "second";

struct FusedNormFunction : public torch::autograd::Function<FusedNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& added,
                            const NormTensors& tensors, bool relu, const at::Tensor& tickets) {
    const at::Tensor residual = added.value_or(at::Tensor());
    const c10::cuda::CUDAGuard guard(x.device());
    const NormShape shape = ShapeOf(x);
    const at::Tensor y = at::empty_like(x);
    const at::Tensor mean = FloatsBeside(x, static_cast<size_t>(shape.channels));
    const at::Tensor inv_std = at::empty_like(mean);
    const at::Tensor scratch = FloatsBeside(x, NormScratchFloats(shape, Multiprocessors()));
    at::Tensor mask;
    if (relu && residual.defined()) {
      mask = at::empty({static_cast<int64_t>(NormMaskBytes(shape))}, x.options().dtype(at::kByte));
    }
    NormForward args;
    args.x = x.data_ptr();
    args.residual = Memory(residual);
    args.relu = relu;
    args.y = y.data_ptr();
    args.mask = static_cast<uint8_t*>(Memory(mask));
    args.weight = FloatsOf(weight);
    args.bias = FloatsOf(bias);
    args.mean = FloatsOf(mean);
    args.inv_std = FloatsOf(inv_std);
    args.running_mean = FloatsOf(tensors.running_mean);
    args.running_variance = FloatsOf(tensors.running_var);
    args.batches = tensors.num_batches_tracked.data_ptr<int64_t>();
    args.scratch = FloatsOf(scratch);
    args.tickets = static_cast<unsigned*>(tickets.data_ptr());
    C10_CUDA_CHECK(StartNormForward(shape, args, Multiprocessors(), StreamOf(x)));
    context->save_for_backward({x, weight, bias, mean, inv_std, mask, tickets});
    context->saved_data["relu"] = relu;
    context->saved_data["residual"] = residual.defined();
    if (mask.defined()) {
      context->saved_data[kSecond] =
          c10::IValue::make_capsule(c10::make_intrusive<SecondGradient>());
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& mask = saved[5];
    const bool relu = context->saved_data["relu"].toBool();
    const bool has_residual = context->saved_data["residual"].toBool();
    const c10::cuda::CUDAGuard guard(x.device());
    const NormShape shape = ShapeOf(x);
    const at::Tensor dy = Laid(gradients[0]);
    at::Tensor second_dy;
    if (mask.defined()) second_dy = std::exchange(SecondOf(*context)->value, at::Tensor());
    const at::Tensor dx = at::empty_like(x);
    // Without ReLU the residual's gradient is this one's.
    at::Tensor d_residual;
    if (has_residual) d_residual = relu ? at::empty_like(x) : dy;
    const at::Tensor d_weight = FloatsBeside(x, static_cast<size_t>(shape.channels));
    const at::Tensor d_bias = at::empty_like(d_weight);
    const at::Tensor scratch = FloatsBeside(x, NormScratchFloats(shape, Multiprocessors()));
    NormBackward args;
    args.x = x.data_ptr();
    args.dy = dy.data_ptr();
    args.second_dy = Memory(second_dy);
    args.dx = dx.data_ptr();
    args.relu = relu;
    args.mask = static_cast<const uint8_t*>(Memory(mask));
    args.d_residual = args.mask != nullptr ? Memory(d_residual) : nullptr;
    args.weight = FloatsOf(saved[1]);
    args.bias = FloatsOf(saved[2]);
    args.mean = FloatsOf(saved[3]);
    args.inv_std = FloatsOf(saved[4]);
    args.d_weight = FloatsOf(d_weight);
    args.d_bias = FloatsOf(d_bias);
    args.scratch = FloatsOf(scratch);
    args.tickets = static_cast<unsigned*>(saved[6].data_ptr());
    C10_CUDA_CHECK(StartNormBackward(shape, args, Multiprocessors(), StreamOf(x)));
    return {dx, d_weight, d_bias, d_residual, at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static c10::intrusive_ptr<SecondGradient> SecondOf(const AutogradContext& context) {
    return c10::static_intrusive_pointer_cast<SecondGradient>(
        context.saved_data.at(kSecond).toCapsule());
  }
};

// The same memory, for autograd another tensor.
at::Tensor Alias(const at::Tensor& x) {
  return at::empty({0}, x.options()).set_(x.storage(), x.storage_offset(), x.sizes(), x.strides());
}

struct ForkFunction : public torch::autograd::Function<ForkFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const c10::intrusive_ptr<SecondGradient>& second) {
    context->saved_data[kSecond] = c10::IValue::make_capsule(second);
    return {Alias(x), Alias(x)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool both = gradients[0].defined() && gradients[1].defined();
    if (both) FusedNormFunction::SecondOf(*context)->value = Laid(gradients[1]);
    return {gradients[0].defined() ? gradients[0] : gradients[1], at::Tensor()};
  }
};

}  // namespace

bool FusedNorm::Takes(const at::Tensor& x, const NormTensors& tensors) {
  return IsImageOnGpu(x) && x.size(1) % kNormChannels == 0 && x.size(1) <= kMostNormChannels &&
         IsVector(tensors.weight, x) && IsVector(tensors.bias, x) &&
         IsVector(tensors.running_mean, x) && IsVector(tensors.running_var, x) &&
         tensors.num_batches_tracked.device() == x.device();
}

at::Tensor FusedNorm::Forward(const at::Tensor& x, const at::Tensor& residual, bool relu,
                              const NormTensors& tensors) {
  if (!tickets_.defined() || tickets_.device() != x.device()) {
    tickets_ = at::zeros({kNormTickets}, x.options().dtype(at::kInt));
  }
  // An input of a function is defined, or an optional that has none.
  std::optional<at::Tensor> added;
  if (residual.defined()) added = Laid(residual.to(x.scalar_type()));
  return FusedNormFunction::apply(x, tensors.weight, tensors.bias, added, tensors, relu, tickets_);
}

std::pair<at::Tensor, at::Tensor> FusedNorm::Fork(const at::Tensor& x) {
  using Node = torch::autograd::CppNode<FusedNormFunction>;
  auto* const made_by = dynamic_cast<Node*>(x.grad_fn().get());
  if (made_by == nullptr || made_by->ctx_.saved_data.count(kSecond) == 0) return {x, x};
  const variable_list forked = ForkFunction::apply(x, FusedNormFunction::SecondOf(made_by->ctx_));
  return {forked[0], forked[1]};
}

}  // namespace gradsync
