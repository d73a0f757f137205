#include "tests/gpu_rank.h"

#include <unistd.h>

#include <climits>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "allreduce/ipc_gradient_sync.h"
#include "allreduce/nccl_gradient_sync.h"
#include "allreduce/open_nccl.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/gpu/open_gpu.h"
#include "core/group/grpc_store.h"
#include "tests/ps_group.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

constexpr absl::string_view kArgument = "--gpu_rank";

std::string ThisProgram() {
  char path[PATH_MAX] = {};
  return readlink("/proc/self/exe", path, sizeof(path) - 1) > 0 ? path : "";
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  step.inverse_loss_scale = 1.0 / 3;
  return step;
}

absl::StatusOr<std::vector<GradBucket>> Begin(GradientSync& sync, const Plan& plan, int rank) {
  GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, sync.Bind(plan, Soon()));
  Write(RandomValues(plan, 1000 + rank), buckets, &GradBucket::param);  // rank 0's count
  GS_RETURN_IF_ERROR(sync.BroadcastParameters(Soon()));
  return buckets;
}

// Waits for the GPU, too.
absl::StatusOr<FlatValues> TrainStep(GradientSync& sync, const Plan& plan,
                                     const std::vector<GradBucket>& buckets, int rank,
                                     int64_t step) {
  const bool owner = sync.update_site() == UpdateSite::kOwner;
  Write(RandomValues(plan, 100 * step + rank), buckets, &GradBucket::grad);
  GS_RETURN_IF_ERROR(RunStep(sync, plan, Step(step)));
  return Read(buckets, owner ? &GradBucket::param : &GradBucket::grad);
}

void Print(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

absl::Status StepForever(GradientSync& sync, int rank) {
  const Plan plan = UnevenPlan(kGpuRanks);
  GS_ASSIGN_OR_RETURN(const std::vector<GradBucket> buckets, Begin(sync, plan, rank));
  for (int64_t step = 1;; ++step) {
    GS_RETURN_IF_ERROR(TrainStep(sync, plan, buckets, rank, step).status());
    if (step == 3) Print("stepping");
  }
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRankSync(const GpuRank& rank) {
  if (!absl::StartsWith(rank.task, "ipc-")) {
    const bool at_owner = rank.task == kHashOwner || rank.task == kHashServersOwner;
    const bool servers = rank.task == kHashServersOwner || rank.task == kHashServersWorker;
    return CreateRealNccl(rank.group, at_owner ? UpdateSite::kOwner : UpdateSite::kWorker,
                          servers ? kGpuRanks : 0);
  }
  IpcOptions options;
  options.group = rank.group;
  options.servers = absl::StartsWith(rank.task, kHashIpcServer);
  options.owners = rank.task == kHashIpcServer ? 1 : 0;
  if (absl::EndsWith(rank.task, "-owner")) options.update_site = UpdateSite::kOwner;
  GS_ASSIGN_OR_RETURN(options.gpu, OpenGpu(0));
  return CreateIpcGradientSync(options);
}

}  // namespace

std::vector<std::string> GpuRankCommand(absl::string_view task, int rank, int store_port) {
  return {"/usr/bin/env",
          "-u",
          "XML_OUTPUT_FILE",  // is this process's
          absl::StrCat("NCCL_HOSTID=gradsync-test-", rank),
          "NCCL_ALGO=Ring",
          "NCCL_PROTO=Simple",
          "NCCL_SOCKET_IFNAME==lo",
          "NCCL_IB_DISABLE=1",
          "NCCL_DEBUG=WARN",
          ThisProgram(),
          std::string(kArgument),
          std::string(task),
          absl::StrCat(rank),
          absl::StrCat(store_port)};
}

absl::StatusOr<absl::optional<GpuRank>> ParseGpuRank(int argc, char** argv) {
  if (argc != 5 || argv[1] != kArgument) return absl::optional<GpuRank>();
  GpuRank rank;
  rank.task = argv[2];
  if (!absl::SimpleAtoi(argv[3], &rank.group.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("expected a rank, found \"", argv[3], "\""));
  }
  rank.group.world_size = kGpuRanks;
  rank.group.run_id = rank.task;
  rank.group.address = "127.0.0.1";
  rank.group.credentials = InsecureCredentials();
  if (rank.task == kStepForever || rank.task == kStepForeverOverIpc) {
    rank.group.timeout = absl::Seconds(10);
  }
  GS_ASSIGN_OR_RETURN(rank.group.store, ConnectStore(absl::StrCat("127.0.0.1:", argv[4]),
                                                     rank.group.credentials, Soon()));
  return absl::optional<GpuRank>(std::move(rank));
}

int RunGpuRank(const GpuRank& rank) {
  const auto sync = CreateRankSync(rank);
  if (!sync.ok()) {
    Print(absl::StrCat("failed ", sync.status().ToString()));
    return 1;
  }
  if (rank.task == kStepForever || rank.task == kStepForeverOverIpc) {
    Print(absl::StrCat("failed ", StepForever(**sync, rank.group.rank).ToString()));
    return 0;
  }
  const absl::StatusOr<std::string> hash = HashOfTraining(**sync, rank.group.rank);
  Print(hash.ok() ? absl::StrCat("hash ", *hash)
                  : absl::StrCat("failed ", hash.status().ToString()));
  return hash.ok() ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRealNccl(const WorkerGroup& group,
                                                             UpdateSite site, int owners) {
  NcclOptions options;
  options.owners = owners;
  options.group = group;
  options.update_site = site;
  GS_ASSIGN_OR_RETURN(options.gpu, OpenGpu(0));
  GS_ASSIGN_OR_RETURN(options.nccl, OpenNccl(0, "NCCL_ALGO=Ring"));
  return CreateNcclGradientSync(options);
}

absl::StatusOr<std::string> HashOfTraining(GradientSync& sync, int rank) {
  const Plan plan = UnevenPlan(kGpuRanks);
  GS_ASSIGN_OR_RETURN(const std::vector<GradBucket> buckets, Begin(sync, plan, rank));
  Sha256 hash;
  for (int64_t step = 1; step <= 5; ++step) {
    GS_ASSIGN_OR_RETURN(const FlatValues result, TrainStep(sync, plan, buckets, rank, step));
    for (const std::vector<float>& flat : result) {
      hash.Update(flat.data(), flat.size() * sizeof(float));
    }
  }
  GS_RETURN_IF_ERROR(sync.Shutdown(Soon()));
  return hash.HexDigest();
}

}  // namespace gradsync
