#include "core/sync/device_buckets.h"

#include <cstddef>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "c10/core/TensorOptions.h"
#include "core/base/status_macros.h"
#include "core/plan/bucket_slots.h"

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

c10::Device TensorDevice(const GpuApi* gpu) {
  if (gpu == nullptr || !gpu->is_cuda()) return c10::Device(c10::DeviceType::CPU);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu->device()));
}

at::Tensor TensorOver(const GpuApi& gpu, std::shared_ptr<GpuMemory> memory, size_t offset,
                      int64_t numel) {
  void* const data = static_cast<char*>(memory->data()) + offset;
  return at::from_blob(
      data, {numel}, [memory = std::move(memory)](void*) {},
      at::TensorOptions().dtype(at::kFloat).device(TensorDevice(&gpu)));
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
    buckets.push_back({TensorOver(*gpu, grads[SlotOf(bucket, slots.gradients)], 0, numel),
                       TensorOver(*gpu, params[SlotOf(bucket, slots.parameters)], 0, numel)});
  }
  return buckets;
}

}  // namespace gradsync
