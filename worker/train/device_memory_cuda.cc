#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAFunctions.h"
#include "worker/train/count_tensor_memory.h"

namespace gradsync {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class DeviceMemory : public TensorMemory {
 public:
  void StartPeak() override { allocator::resetPeakStats(device_); }
  int64_t PeakBytes() const override {
    return allocator::getDeviceStats(device_).allocated_bytes[0].peak;  // of pools of all kinds
  }

 private:
  const decltype(c10::cuda::current_device()) device_ = c10::cuda::current_device();
};

}  // namespace

std::unique_ptr<TensorMemory> CountDeviceMemory() { return std::make_unique<DeviceMemory>(); }

}  // namespace gradsync
