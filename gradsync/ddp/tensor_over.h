#ifndef GRADSYNC_GRADSYNC_DDP_TENSOR_OVER_H_
#define GRADSYNC_GRADSYNC_DDP_TENSOR_OVER_H_

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "core/gpu/gpu_api.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Where LibTorch has the tensors of a sync whose GradientSync::gpu() is `gpu`: on the CPU for null,
// and for a fake, whose memory is the host's. Thread-safe.
c10::Device TensorDevice(const GpuApi* gpu);

// Where LibTorch has the tensors over a buffer. Thread-safe.
c10::Device TensorDevice(const FlatBuffer& buffer);

// A tensor of shape [buffer.numel] over the buffer's elements, which it keeps alive. Undefined for a
// buffer without memory.
at::Tensor TensorOver(const FlatBuffer& buffer);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_TENSOR_OVER_H_
