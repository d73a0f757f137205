// The one list of topologies and links.

#ifndef GRADSYNC_WORKER_SYNC_FACTORY_H_
#define GRADSYNC_WORKER_SYNC_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/nccl_api.h"
#include "gpu/gpu_api.h"
#include "sync/gradient_sync.h"
#include "sync/worker_group.h"

namespace gradsync {

// As the flags of the same names have them; see //worker --help.
struct SyncOptions {
  std::string topology = "local";    // local, ps, ring
  std::string link = "auto";         // auto, grpc, shm, gloo, nccl, cuda_ipc
  std::string update = "worker";     // worker, owner
  std::string consistency = "bsp";   // bsp, ssp:S, asp
  std::string compression = "none";  // none, fp16, bf16, topk:R; the plan must have the same codec
  std::vector<std::string> servers;  // host:port each; for ps
  std::string server_weights = "auto";  // auto, equal, or w0,w1,...; for ps
  std::vector<double> weights;          // of the servers: set by ResolveByHosts(); empty: equal
  int connections = 0;                  // per pair of peers; 0 chooses the topology's default
  int owners =
      0;  // for ps over nccl and cuda_ipc: the first so many ranks are the servers; 0: all ranks
  // Has the buckets: by staging (sync/staged_sync.h), or NCCL's. Null: the host has them.
  std::shared_ptr<GpuApi> gpu;
  std::shared_ptr<NcclApi> nccl;  // of that GPU, with nccl
};

// Checks everything that can be known before a connection is made.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came; UNIMPLEMENTED never: a
// link that this build lacks is INVALID_ARGUMENT, with the way to get it.
absl::Status ValidateSyncOptions(const SyncOptions& options);

// What the link nccl needs besides: buckets in the memory of `gpu`.
// Errors: INVALID_ARGUMENT when there is none.
absl::Status CheckNcclDevice(const GpuApi* gpu);

// The same for cuda_ipc.
absl::Status CheckIpcDevice(const GpuApi* gpu);

// The link that `options.link` stands for: "" for local, grpc for `auto` where ResolveByHosts() was
// not asked.
std::string ResolvedLink(const SyncOptions& options);

// Collective, before CreateGradientSync(): sets what depends on which hosts (base/host_identity.h)
// ranks and servers are on.
//   link     `auto` becomes shm when all of them share a host, nothing is to be compressed and the
//            consistency is bsp, grpc otherwise
//   weights  with server_weights `auto`, those of WeightsByHost(); servers check that ranks agree
// Rank 0 asks the servers. Blocks until they have answered and all ranks have come, each for at
// most group.timeout; returns at once where nothing is to be found out.
// Errors: DEADLINE_EXCEEDED naming the ranks that did not come; UNAVAILABLE when the store is lost;
// on rank 0 those of AskServerHosts(), while the others meet the same servers in Bind().
absl::Status ResolveByHosts(const WorkerGroup& group, SyncOptions* options);

// Connections per pair of peers that will be used; 0 where there are none (local, shm).
int ResolvedConnections(const SyncOptions& options);

// The same for an optimizer that clips to a global norm of `max_norm` (0: it does not).
// Errors: INVALID_ARGUMENT naming --max_norm under ssp and asp.
absl::Status ValidateClipping(const SyncOptions& options, double max_norm);

// Creates the backend. `options` must have passed ValidateSyncOptions(). Opens no connection yet;
// GradientSync::Bind() does. Errors: also INVALID_ARGUMENT for what depends on the number of ranks.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateGradientSync(const SyncOptions& options,
                                                                 const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SYNC_FACTORY_H_
