#include <cstdint>
#include <optional>

#include "ATen/cuda/CUDAContextLight.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/zeros.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "gpu/norm_kernels.h"
#include "models/fused_norm.h"
#include "torch/csrc/autograd/custom_function.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kFormat = at::MemoryFormat::ChannelsLast;

bool IsAligned(const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0; }

// As the kernels want a tensor that others made.
at::Tensor Laid(const at::Tensor& t) {
  const at::Tensor dense = t.contiguous(kFormat);
  return IsAligned(dense) ? dense : dense.clone(kFormat);
}

bool IsVector(const at::Tensor& t, const at::Tensor& x) {
  return t.defined() && t.device() == x.device() && t.scalar_type() == at::kFloat &&
         t.is_contiguous() && t.numel() == x.size(1) && IsAligned(t);
}

NormShape ShapeOf(const at::Tensor& x) {
  NormShape shape;
  shape.type = x.scalar_type() == at::kFloat  ? NormType::kFloat
               : x.scalar_type() == at::kHalf ? NormType::kHalf
                                              : NormType::kBfloat16;
  shape.channels = x.size(1);
  shape.rows = x.numel() / shape.channels;
  return shape;
}

int Multiprocessors() { return at::cuda::getCurrentDeviceProperties()->multiProcessorCount; }

cudaStream_t StreamOf(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

at::Tensor FloatsBeside(const at::Tensor& x, size_t count) {
  return at::empty({static_cast<int64_t>(count)}, x.options().dtype(at::kFloat));
}

void* Memory(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
float* FloatsOf(const at::Tensor& t) { return t.data_ptr<float>(); }

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
};

}  // namespace

bool FusedNorm::Takes(const at::Tensor& x, const NormTensors& tensors) {
  if (!x.is_cuda() || x.dim() != 4 || x.numel() == 0 || !x.is_contiguous(kFormat)) return false;
  const at::ScalarType type = x.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) return false;
  return x.size(1) % kNormChannels == 0 && x.size(1) <= kMostNormChannels && IsAligned(x) &&
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

}  // namespace gradsync
