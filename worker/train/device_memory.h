#ifndef GRADSYNC_WORKER_TRAIN_DEVICE_MEMORY_H_
#define GRADSYNC_WORKER_TRAIN_DEVICE_MEMORY_H_

#include <memory>

#include "worker/train/tensor_memory.h"

namespace gradsync {

// CountTensorMemory() for the calling thread's current GPU; null in a build without CUDA.
std::unique_ptr<TensorMemory> CountDeviceMemory();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_DEVICE_MEMORY_H_
