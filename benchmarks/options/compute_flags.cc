#include "benchmarks/options/compute_flags.h"

#include "absl/strings/str_cat.h"
#include "benchmarks/options/flag_checks.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "gradsync/join/sync_factory.h"
#include "gradsync/join/torch_adapters.h"
#include "worker/train/compute_options.h"

namespace gradsync {

absl::StatusOr<std::string> ResolveDevice(const std::string& device, const std::vector<Link>& links,
                                          int workers, const GpuChecker& check) {
  const bool nccl = Contains(links, Link::kNccl);
  if (nccl) {
    SyncOptions sync;
    sync.job.topology = Topology::kRing;
    sync.job.link = Link::kNccl;
    sync.adapters = TorchAdapters();
    GS_RETURN_IF_ERROR(ValidateSyncOptions(sync));
  }
  const bool ipc = Contains(links, Link::kCudaIpc);
  const std::string wanted = !device.empty() ? device : nccl || ipc ? "cuda" : "cpu";
  GS_ASSIGN_OR_RETURN(const std::string resolved, ChooseDevice(wanted, workers, check));
  if (nccl && resolved == "cpu") return CheckLinkDevice(Link::kNccl, nullptr);
  if (ipc && resolved == "cpu") return CheckLinkDevice(Link::kCudaIpc, nullptr);
  return resolved;
}

absl::Status CheckCompute(const ComputeFlags& flags, const std::vector<UpdateSite>& updates) {
  const c10::DeviceType device = flags.on_gpu() ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
  GS_RETURN_IF_ERROR(CheckPrecision(flags.precision, device));
  if (flags.precision == Precision::kFp16 && Contains(updates, UpdateSite::kOwner)) {
    return FlagError("precision",
                     "fp32 or bf16 with --update=owner (owners cannot skip a step whose gradients "
                     "overflow)",
                     PrecisionName(flags.precision));
  }
  // On a GPU this would set what only a process that computes needs.
  return flags.on_gpu() ? absl::OkStatus() : ApplyMathFlags(flags.tf32, device);
}

std::vector<std::string> WorkerComputeFlags(const ComputeFlags& flags) {
  std::vector<std::string> list;
  if (flags.on_gpu()) list.push_back(absl::StrCat("--device=", flags.device));
  if (flags.precision != Precision::kFp32) {
    list.push_back(absl::StrCat("--precision=", PrecisionName(flags.precision)));
  }
  if (flags.channels_last) list.push_back("--channels_last");
  if (flags.tf32) list.push_back("--tf32");
  if (flags.on_gpu() && flags.cudnn_benchmark) list.push_back("--cudnn_benchmark");
  return list;
}

}  // namespace gradsync
