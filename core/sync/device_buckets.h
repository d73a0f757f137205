#ifndef GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_
#define GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Where LibTorch has the tensors of a sync whose GradientSync::gpu() is `gpu`: on the CPU for null,
// and for a fake, whose memory is the host's. Thread-safe.
c10::Device TensorDevice(const GpuApi* gpu);

// A tensor over `numel` floats of `memory`, from `offset` bytes on, which it keeps alive.
at::Tensor TensorOver(const GpuApi& gpu, std::shared_ptr<GpuMemory> memory, size_t offset,
                      int64_t numel);

// Buckets in memory of the GPU, in as many slots as the plan has (core/plan/bucket_slots.h):
// 256-byte aligned, zeroed, each slot kept alive by the tensors that lie in it.
// Errors: RESOURCE_EXHAUSTED, and those of GpuApi.
absl::StatusOr<std::vector<GradBucket>> AllocateDeviceBuckets(const Plan& plan,
                                                              const std::shared_ptr<GpuApi>& gpu);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_
