#ifndef GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_
#define GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// `numel` floats of `memory`, from `data` on. That of a fake GPU is the host's.
FlatBuffer DeviceBuffer(const GpuApi& gpu, std::shared_ptr<const void> memory, void* data,
                        int64_t numel);

// Buckets in memory of the GPU, in as many slots as the plan has (core/plan/sharding.h):
// 256-byte aligned, zeroed, each slot kept alive by the buffers that lie in it.
// Errors: RESOURCE_EXHAUSTED, and those of GpuApi.
absl::StatusOr<std::vector<GradBucket>> AllocateDeviceBuckets(const Plan& plan,
                                                              const std::shared_ptr<GpuApi>& gpu);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_DEVICE_BUCKETS_H_
