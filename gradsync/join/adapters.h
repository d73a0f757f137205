// What a program may link besides the library: the device and the backends that need LibTorch. Without
// them a rank exchanges the host's memory over the links of the library itself.

#ifndef GRADSYNC_GRADSYNC_JOIN_ADAPTERS_H_
#define GRADSYNC_GRADSYNC_JOIN_ADAPTERS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/nccl_api.h"
#include "core/gpu/gpu_api.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// What is empty is not there, and what asks for it is refused. Copies are cheap.
struct Adapters {
  // As OpenGpu() (core/gpu/open_gpu.h).
  std::function<absl::StatusOr<std::shared_ptr<GpuApi>>(int device)> open_gpu;

  // As OpenNccl() (allreduce/open_nccl.h).
  std::function<absl::StatusOr<std::shared_ptr<NcclApi>>(int device, std::string algorithm)>
      open_nccl;

  // As CreateGlooGradientSync() (allreduce/gloo_gradient_sync.h).
  std::function<absl::StatusOr<std::unique_ptr<GradientSync>>(const WorkerGroup& group,
                                                              UpdateSite update_site)>
      create_gloo;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_ADAPTERS_H_
