// A build without CUDA.
#include "worker/train/count_tensor_memory.h"

namespace gradsync {

std::unique_ptr<TensorMemory> CountDeviceMemory() { return nullptr; }

}  // namespace gradsync
