// A build without CUDA.
#include "worker/train/device_memory.h"

namespace gradsync {

std::unique_ptr<TensorMemory> CountDeviceMemory() { return nullptr; }

}  // namespace gradsync
