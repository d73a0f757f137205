#ifndef GRADSYNC_WORKER_TRAIN_COUNT_TENSOR_MEMORY_H_
#define GRADSYNC_WORKER_TRAIN_COUNT_TENSOR_MEMORY_H_

#include <memory>

#include "core/gpu/gpu_api.h"
#include "worker/train/tensor_memory.h"

namespace gradsync {

// For `gpu`, the numbers of LibTorch's caching allocator for its current device; without a GPU, a
// counting allocator, which from here on is LibTorch's for the CPU (a process has one): each tensor
// takes the same memory as before, and some nanoseconds more. What was allocated before is not in
// its numbers.
std::unique_ptr<TensorMemory> CountTensorMemory(const GpuApi* gpu);

// CountTensorMemory() for the calling thread's current GPU; null in a build without CUDA.
std::unique_ptr<TensorMemory> CountDeviceMemory();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_COUNT_TENSOR_MEMORY_H_
