// Ranks over the real NCCL, or over memory of the GPU that they share, all on GPU 0 and each a
// process of its own: NCCL lets two ranks share a GPU only where it takes them for ranks of
// different hosts, which it decides per process (docs/internals/nccl.md), and CUDA maps memory only into
// other processes. The process is this program again, with other arguments.

#ifndef GRADSYNC_TESTS_GPU_RANK_H_
#define GRADSYNC_TESTS_GPU_RANK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

constexpr int kGpuRanks = 2;

// What a rank's process does.
constexpr char kRunSuite[] = "suite";                 // the conformance suite, as one of its ranks
constexpr char kRunServersSuite[] = "servers-suite";  // the same with servers
constexpr char kHashWorker[] = "worker";  // prints "hash " and HashOfTraining(), update at worker
constexpr char kHashOwner[] = "owner";    // the same at owner
constexpr char kHashServersWorker[] = "servers-worker";  // the same with servers
constexpr char kHashServersOwner[] = "servers-owner";
constexpr char kStepForever[] = "stepping";  // prints "stepping" and, when a step fails, "failed "
                                             // and why

// The same over GPU memory that the ranks share (allreduce/ipc_gradient_sync.h); hashes by who
// folds: as a ring, as one server, as a server per rank.
constexpr char kRunIpcSuite[] = "ipc-suite";
constexpr char kHashIpcRing[] = "ipc-ring";
constexpr char kHashIpcServer[] = "ipc-server";
constexpr char kHashIpcServers[] = "ipc-servers";
constexpr char kHashIpcRingOwner[] = "ipc-ring-owner";  // update at owner
constexpr char kHashIpcServersOwner[] = "ipc-servers-owner";
constexpr char kStepForeverOverIpc[] = "ipc-stepping";

struct GpuRank {
  std::string task;
  WorkerGroup group;
};

// The command that starts one. The store, where ranks meet, is served at that port of this host.
std::vector<std::string> GpuRankCommand(absl::string_view task, int rank, int store_port);

// What this process is to be by its arguments; none: it is no rank. Connects to the store.
absl::StatusOr<absl::optional<GpuRank>> ParseGpuRank(int argc, char** argv);

// Does a rank's task other than those of the suite. Returns the process's exit code.
int RunGpuRank(const GpuRank& rank);

// NCCL on GPU 0, with `owners` as in NcclOptions. Errors: also those of OpenGpu().
absl::StatusOr<std::unique_ptr<GradientSync>> CreateRealNccl(const WorkerGroup& group,
                                                             UpdateSite site, int owners);

// Binds, broadcasts and trains some steps with values that depend on rank and step alone, and shuts
// down. A hash over the results of all steps: means under kWorker, parameters under kOwner.
absl::StatusOr<std::string> HashOfTraining(GradientSync& sync, int rank);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_GPU_RANK_H_
