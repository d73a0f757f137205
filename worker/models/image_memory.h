// How images must lie for our own kernels. For builds with CUDA.

#ifndef GRADSYNC_WORKER_MODELS_IMAGE_MEMORY_H_
#define GRADSYNC_WORKER_MODELS_IMAGE_MEMORY_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/cuda/CUDAStream.h"
#include "worker/models/norm_kernels.h"

namespace gradsync {

constexpr auto kImageFormat = at::MemoryFormat::ChannelsLast;

inline bool IsAligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
}

// Of a type that the kernels know.
inline bool IsImageOnGpu(const at::Tensor& x) {
  if (!x.is_cuda() || x.dim() != 4 || x.numel() == 0 || !x.is_contiguous(kImageFormat)) {
    return false;
  }
  const at::ScalarType type = x.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && IsAligned(x);
}

// A tensor that others made, as the kernels want it.
inline at::Tensor Laid(const at::Tensor& t) {
  const at::Tensor dense = t.contiguous(kImageFormat);
  return IsAligned(dense) ? dense : dense.clone(kImageFormat);
}

inline NormType NormTypeOf(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat  ? NormType::kFloat
         : x.scalar_type() == at::kHalf ? NormType::kHalf
                                        : NormType::kBfloat16;
}

inline cudaStream_t StreamOf(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_IMAGE_MEMORY_H_
