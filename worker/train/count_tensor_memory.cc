#include "worker/train/count_tensor_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstring>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/impl/alloc_cpu.h"

namespace gradsync {
namespace {

// LibTorch has one allocator per process, and its deleters are functions without an object.
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void Add(int64_t bytes) {
  const int64_t live = live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

// malloc knows how large each block is, so no block needs a note of its own.
int64_t SizeOf(void* block) { return static_cast<int64_t>(malloc_usable_size(block)); }

void Free(void* block) {
  live_bytes.fetch_sub(SizeOf(block), std::memory_order_relaxed);
  c10::free_cpu(block);
}

// Releases of LibTorch differ in what they declare const and in copy_data(): without `override`
// this is an allocator of each.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) const { return Allocate(bytes); }
  c10::DataPtr allocate(size_t bytes) { return Allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::memcpy(to, from, bytes);
  }

 private:
  static c10::DataPtr Allocate(size_t bytes) {
    void* const block = c10::alloc_cpu(bytes);
    Add(SizeOf(block));
    return {block, block, &Free, c10::Device(c10::DeviceType::CPU)};
  }
};

class HostMemory : public TensorMemory {
 public:
  HostMemory() {
    static auto* const allocator = new CountingAllocator;
    if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator, /*priority=*/255);
  }
  void StartPeak() override { peak_bytes = live_bytes.load(); }
  int64_t PeakBytes() const override { return peak_bytes; }
};

}  // namespace

std::unique_ptr<TensorMemory> CountTensorMemory(const GpuApi* gpu) {
  if (gpu != nullptr && gpu->is_cuda()) return CountDeviceMemory();
  return std::make_unique<HostMemory>();
}

}  // namespace gradsync
