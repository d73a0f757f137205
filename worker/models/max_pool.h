#ifndef GRADSYNC_WORKER_MODELS_MAX_POOL_H_
#define GRADSYNC_WORKER_MODELS_MAX_POOL_H_

#include "ATen/core/Tensor.h"

namespace gradsync {

// at::max_pool2d() of 3x3 pixels, 2 apart, with a border of 1, by the kernels of
// core/gpu/pool_kernels.h where they take x: on a GPU, in a build with CUDA, channels-last, a
// multiple of 8 channels, fp32, fp16 or bf16. Its values are the operation's; a gradient is summed
// in fp32 before it is rounded. Queues its work on LibTorch's current stream and waits for nothing.
// What LibTorch throws, it throws.
at::Tensor MaxPool(const at::Tensor& x);

// Whether the kernels take it.
bool TakesMaxPool(const at::Tensor& x);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MAX_POOL_H_
