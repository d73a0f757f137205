// Our own kernels for images, as operations of LibTorch.

#ifndef GRADSYNC_WORKER_MODELS_IMAGE_KERNELS_H_
#define GRADSYNC_WORKER_MODELS_IMAGE_KERNELS_H_

#include <utility>

#include "ATen/core/Tensor.h"

namespace gradsync {

// What batch normalisation in training has besides its input: tensors of `channels` floats, the
// last a count. The buffers are updated in place, unseen by autograd.
struct NormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;
};

// Batch normalisation in training, the addition of a residual and ReLU by the kernels of
// worker/models/norm_kernels.h, instead of by three operations that each read and write everything.
// Values within a layer are not rounded in between, so results differ from those of the operations
// by rounding.
//
// Queues its work, forward and backward, on LibTorch's current stream of x's device, waits for
// nothing, and takes memory from LibTorch's allocator: it can be part of a graph of CUDA. One
// object for each layer, whose forward and backward run on one stream. Not thread-safe. What
// LibTorch throws, it throws.
class FusedNorm {
 public:
  // Whether Forward() takes this input: on a GPU, in a build with CUDA, channels-last, a multiple
  // of 8 and at most 8192 channels, fp32, fp16 or bf16, with `tensors` in fp32 beside it.
  static bool Takes(const at::Tensor& x, const NormTensors& tensors);

  // relu(norm(x) + residual), where `residual` may be undefined and `relu` false. Takes(x,
  // tensors), and x has more than one value per channel. A residual of another type or memory
  // format is converted first. Momentum and eps are those of torch.nn.BatchNorm2d, 0.1 and 1e-5.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& residual, bool relu,
                     const NormTensors& tensors);

  // Two tensors of x's memory and values for two operations that use it. Where x came from a
  // Forward() with residual and ReLU, they have gradients of their own, which its backward reads as
  // two: their sum, which autograd would write and it read, is never in memory. Else both are x.
  static std::pair<at::Tensor, at::Tensor> Fork(const at::Tensor& x);

 private:
  at::Tensor tickets_;  // of the kernels; made when first needed
};

// at::max_pool2d() of 3x3 pixels, 2 apart, with a border of 1, by the kernels of
// worker/models/pool_kernels.h where they take x: on a GPU, in a build with CUDA, channels-last, a
// multiple of 8 channels, fp32, fp16 or bf16. Its values are the operation's; a gradient is summed
// in fp32 before it is rounded. Queues its work on LibTorch's current stream and waits for nothing.
// What LibTorch throws, it throws.
at::Tensor MaxPool(const at::Tensor& x);

// Whether the kernels take it.
bool TakesMaxPool(const at::Tensor& x);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_IMAGE_KERNELS_H_
