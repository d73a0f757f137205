#include "benchmarks/ranks/rank_device_main.h"

#include <cstdlib>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "allreduce/open_nccl.h"
#include "base/status_macros.h"
#include "gpu/open_gpu.h"
#include "worker/nccl_settings.h"
#include "worker/open_device.h"

ABSL_FLAG(std::string, device, "cpu", "as //worker has it");
ABSL_FLAG(int, local_rank, -1, "as //worker has it");

namespace gradsync {
namespace {

absl::optional<std::string> Variable(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? absl::nullopt : absl::optional<std::string>(value);
}

}  // namespace

absl::Status OpenDeviceFromFlags(int world_size, SyncOptions* sync) {
  DeviceOptions device;
  device.device = absl::GetFlag(FLAGS_device);
  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  if (local_rank >= 0) device.local_rank = local_rank;
  GS_ASSIGN_OR_RETURN(sync->gpu, OpenDevice(device, world_size, OpenGpu));
  GS_RETURN_IF_ERROR(CheckLinkDevice(sync->job.link, sync->gpu.get()));
  if (sync->job.link != Link::kNccl) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(sync->nccl, OpenNccl(sync->gpu->device(), NcclSettings(Variable)));
  return absl::OkStatus();
}

}  // namespace gradsync
