// Where buckets are: in memory of this process, of a GPU, or of a window.

#ifndef GRADSYNC_CORE_SYNC_BUCKETS_H_
#define GRADSYNC_CORE_SYNC_BUCKETS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/plan.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_group.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Buckets in plain memory of this process: 64-byte aligned, zeroed, kept alive by the buffers, all
// of them by each, in as many slots as the plan has (core/plan/sharding.h). They fill pages of
// their own. Throws nothing. Errors: RESOURCE_EXHAUSTED, with how many bytes they are, when the
// host has not as many.
absl::StatusOr<std::vector<GradBucket>> AllocateBuckets(const Plan& plan);

// `numel` floats of `memory`, from `data` on. That of a fake GPU is the host's.
FlatBuffer DeviceBuffer(const GpuApi& gpu, std::shared_ptr<const void> memory, void* data,
                        int64_t numel);

// Buckets in memory of the GPU, in as many slots as the plan has (core/plan/sharding.h):
// 256-byte aligned, zeroed, each slot kept alive by the buffers that lie in it.
// Errors: RESOURCE_EXHAUSTED, and those of GpuApi.
absl::StatusOr<std::vector<GradBucket>> AllocateDeviceBuckets(const Plan& plan,
                                                              const std::shared_ptr<GpuApi>& gpu);

// The buckets of `rank` in its window, which they keep alive.
std::vector<GradBucket> WindowBuckets(const WindowGroup& group, int rank,
                                      const std::shared_ptr<Window>& window);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_BUCKETS_H_
