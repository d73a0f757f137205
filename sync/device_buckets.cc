#include "sync/device_buckets.h"

#include <cstddef>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "base/status_macros.h"
#include "c10/core/TensorOptions.h"

namespace gradsync {
namespace {

absl::StatusOr<at::Tensor> AllocateFlat(const std::shared_ptr<GpuApi>& gpu, int64_t numel) {
  GS_ASSIGN_OR_RETURN(std::shared_ptr<GpuMemory> memory,
                      GpuMemory::OnDevice(gpu, static_cast<size_t>(numel) * sizeof(float)));
  return TensorOver(*gpu, std::move(memory), 0, numel);
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
  std::vector<GradBucket> buckets;
  for (const BucketPlan& bucket : plan.buckets()) {
    GradBucket& flat = buckets.emplace_back();
    GS_ASSIGN_OR_RETURN(flat.grad, AllocateFlat(gpu, bucket.numel));
    GS_ASSIGN_OR_RETURN(flat.param, AllocateFlat(gpu, bucket.numel));
  }
  return buckets;
}

}  // namespace gradsync
