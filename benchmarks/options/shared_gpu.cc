#include "benchmarks/options/shared_gpu.h"

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"

namespace gradsync {

absl::Status CheckRanksPerGpu(int ranks_per_gpu, const std::string& device) {
  if (ranks_per_gpu < 1) {
    return FlagError("ranks_per_gpu", "at least 1", absl::StrCat(ranks_per_gpu));
  }
  if (ranks_per_gpu == 1 || device == "cuda") return absl::OkStatus();
  return FlagError("ranks_per_gpu",
                   absl::StrCat("1 with --device=", device.empty() ? "cpu" : device,
                                ", more only with --device=cuda"),
                   absl::StrCat(ranks_per_gpu));
}

std::vector<std::string> SharedGpuEnvironment(int rank) {
  return {absl::StrCat("NCCL_HOSTID=gradsync-test-", rank), "NCCL_ALGO=Ring", "NCCL_PROTO=Simple",
          "NCCL_SOCKET_IFNAME==lo", "NCCL_IB_DISABLE=1"};
}

std::string SharedGpuNote(int ranks_per_gpu) {
  return absl::StrCat("test mode: ", ranks_per_gpu,
                      " ranks share a GPU and take turns on it, and NCCL goes over sockets: its "
                      "results are right, its times mean nothing");
}

}  // namespace gradsync
