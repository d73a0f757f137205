#include <cstdint>
#include <limits>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/max_pool2d.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "torch/csrc/autograd/custom_function.h"
#include "worker/models/image_kernels.h"
#include "worker/models/image_memory.h"
#include "worker/models/pool_kernels.h"

namespace gradsync {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

PoolShape ShapeOf(const at::Tensor& x) {
  PoolShape shape;
  shape.images = x.size(0);
  shape.channels = x.size(1);
  shape.height = x.size(2);
  shape.width = x.size(3);
  return shape;
}

struct MaxPoolFunction : public torch::autograd::Function<MaxPoolFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const c10::cuda::CUDAGuard guard(x.device());
    const PoolShape shape = ShapeOf(x);
    const std::vector<int64_t> sizes = {shape.images, shape.channels, shape.rows(),
                                        shape.columns()};
    const at::Tensor y = at::empty(sizes, x.options(), kImageFormat);
    const at::Tensor codes = at::empty(sizes, x.options().dtype(at::kByte), kImageFormat);
    C10_CUDA_CHECK(StartMaxPool(NormTypeOf(x), shape, x.data_ptr(), y.data_ptr(),
                                codes.data_ptr<uint8_t>(), StreamOf(x)));
    context->save_for_backward({codes});
    context->saved_data["height"] = shape.height;
    context->saved_data["width"] = shape.width;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor codes = context->get_saved_variables()[0];
    const at::Tensor dy = Laid(gradients[0]);
    const c10::cuda::CUDAGuard guard(dy.device());
    const at::Tensor dx = at::empty({dy.size(0), dy.size(1), context->saved_data["height"].toInt(),
                                     context->saved_data["width"].toInt()},
                                    dy.options(), kImageFormat);
    C10_CUDA_CHECK(StartMaxPoolGradient(NormTypeOf(dy), ShapeOf(dx), dy.data_ptr(),
                                        codes.data_ptr<uint8_t>(), dx.data_ptr(), StreamOf(dy)));
    return {dx};
  }
};

}  // namespace

bool TakesMaxPool(const at::Tensor& x) {
  return IsImageOnGpu(x) && x.size(1) % kPart == 0 &&
         x.numel() / kPart <= std::numeric_limits<int>::max();
}

at::Tensor MaxPool(const at::Tensor& x) {
  if (TakesMaxPool(x)) return MaxPoolFunction::apply(x);
  return at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
}

}  // namespace gradsync
