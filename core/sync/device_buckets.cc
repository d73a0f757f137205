#include "core/sync/device_buckets.h"

#include <cstddef>
#include <utility>

#include "core/base/status_macros.h"
#include "core/plan/sharding.h"

namespace gradsync {
namespace {

using Slots = std::vector<std::shared_ptr<GpuMemory>>;

absl::StatusOr<Slots> AllocateSlots(const Plan& plan, int slots,
                                    const std::shared_ptr<GpuApi>& gpu) {
  Slots memory;
  for (int64_t elements : SlotElements(plan, slots)) {
    GS_ASSIGN_OR_RETURN(memory.emplace_back(),
                        GpuMemory::OnDevice(gpu, static_cast<size_t>(elements) * sizeof(float)));
  }
  return memory;
}

}  // namespace

FlatBuffer DeviceBuffer(const GpuApi& gpu, std::shared_ptr<const void> memory, void* data,
                        int64_t numel) {
  return {data, numel, ElementType::kFloat32, gpu.is_cuda() ? gpu.device() : FlatBuffer::kHost,
          std::move(memory)};
}

absl::StatusOr<std::vector<GradBucket>> AllocateDeviceBuckets(const Plan& plan,
                                                              const std::shared_ptr<GpuApi>& gpu) {
  const BucketSlots& slots = plan.slots();
  GS_ASSIGN_OR_RETURN(const Slots grads, AllocateSlots(plan, slots.gradients, gpu));
  GS_ASSIGN_OR_RETURN(const Slots params, AllocateSlots(plan, slots.parameters, gpu));
  std::vector<GradBucket> buckets;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    const int bucket = static_cast<int>(b);
    const int64_t numel = plan.buckets()[b].numel;
    const std::shared_ptr<GpuMemory>& grad = grads[SlotOf(bucket, slots.gradients)];
    const std::shared_ptr<GpuMemory>& param = params[SlotOf(bucket, slots.parameters)];
    buckets.push_back({DeviceBuffer(*gpu, grad, grad->data(), numel),
                       DeviceBuffer(*gpu, param, param->data(), numel)});
  }
  return buckets;
}

}  // namespace gradsync
