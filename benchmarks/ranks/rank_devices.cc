#include "benchmarks/ranks/rank_devices.h"

#include "allreduce/open_nccl.h"
#include "base/status_macros.h"
#include "gpu/open_gpu.h"
#include "worker/nccl_settings.h"
#include "worker/open_device.h"

namespace gradsync {

absl::Status OpenRankDevices(const RankDevices& devices, SyncOptions* sync) {
  DeviceOptions options;
  options.device = devices.device;
  if (devices.local_rank >= 0) options.local_rank = devices.local_rank;
  GS_ASSIGN_OR_RETURN(sync->gpu, OpenDevice(options, devices.world_size, OpenGpu));
  if (sync->link != "nccl") return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckNcclDevice(sync->gpu.get()));
  GS_ASSIGN_OR_RETURN(sync->nccl, OpenNccl(sync->gpu->device(), NcclSettings(devices.lookup)));
  return absl::OkStatus();
}

}  // namespace gradsync
