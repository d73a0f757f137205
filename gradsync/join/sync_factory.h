// Makes the backend that a job's flags ask for (core/plan/job_spec.h says what there is to ask
// for).

#ifndef GRADSYNC_GRADSYNC_JOIN_SYNC_FACTORY_H_
#define GRADSYNC_GRADSYNC_JOIN_SYNC_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/nccl_api.h"
#include "core/base/deadline.h"
#include "core/gpu/gpu_api.h"
#include "core/group/worker_group.h"
#include "core/plan/job_spec.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/join/adapters.h"
#include "gradsync/join/server_weights.h"

namespace gradsync {

class GroupCollectives;
class StreamLink;

struct SyncOptions {
  // Its numbers of servers and of weights are those of the lists below, where these have any.
  JobSpec job;
  std::vector<std::string> servers;  // host:port each; for ps
  ServerWeights server_weights;      // as asked for
  std::vector<int> server_numbers;   // of each among all of the job's; empty: 0, 1, ...
  std::vector<double> weights;       // of the servers: set by ResolveByHosts(); empty: equal
  bool servers_run = false;          // all of them have answered: set by ResolveByHosts()
  bool servers_in_workers = false;   // server number i is in the process of rank i
  // To servers over grpc, tcp or shm; null: StreamLinkOf(). A worker that has a server of its own gives
  // the link at which that listens.
  std::shared_ptr<StreamLink> server_link;
  Adapters adapters;  // none by default
  // Has the buckets: by staging (core/sync/staged_sync.h), or NCCL's. Null: the host has them.
  std::shared_ptr<GpuApi> gpu;
  std::shared_ptr<NcclApi> nccl;  // of that GPU, with nccl
};

// Checks everything that can be known before a connection is made: CheckJobSpec(), and what this
// build has.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came; UNIMPLEMENTED never: a
// link that this program lacks is INVALID_ARGUMENT, with the way to get it.
absl::Status ValidateSyncOptions(const SyncOptions& options);

// Whether NCCL is there, or can be opened. Errors: INVALID_ARGUMENT, with the way to get it.
absl::Status CheckNccl(const SyncOptions& options);

// Errors: INVALID_ARGUMENT when more workers are to be servers than there are, which in a mesh that
// cuts the model are the replicas of a part.
absl::Status CheckOwners(const JobSpec& job, int workers);

// What a link between GPUs needs besides: buckets in the memory of `gpu`.
// Errors: INVALID_ARGUMENT when there is none.
absl::Status CheckLinkDevice(Link link, const GpuApi* gpu);

// Collective, before CreateGradientSync(): sets what depends on which hosts
// (core/base/host_identity.h) ranks and servers are on.
//   link     kAuto becomes shm when all of them share a host, nothing is to be compressed and the
//            consistency is bsp, kLinkBetweenHosts otherwise
//   weights  with server_weights `auto`, those of WeightsByHost(); servers check that ranks agree
//   servers_run  once rank 0 has had an answer of each
// Rank 0 asks the servers. Blocks until they have answered and all ranks have come, each for at
// most group.timeout; returns at once where nothing is to be found out.
// Errors: DEADLINE_EXCEEDED naming the ranks that did not come; UNAVAILABLE when the store is lost;
// on rank 0 those of AskServerHosts(), while the others meet the same servers in Bind().
absl::Status ResolveByHosts(const WorkerGroup& group, SyncOptions* options);

// FrameLinkOf(link) with the credentials of `group`.
std::shared_ptr<StreamLink> StreamLinkOf(Link link, const WorkerGroup& group);

// The same, but for streams to a server in this process.
std::shared_ptr<StreamLink> OwnServerLinkOf(Link link, const WorkerGroup& group);

// The same between stages or slices, which send each other whole tensors at once.
std::shared_ptr<StreamLink> TensorLinkOf(Link link, const WorkerGroup& group);

// Creates the backend. `options` must have passed ValidateSyncOptions(). Opens no connection yet;
// GradientSync::Bind() does. Errors: also INVALID_ARGUMENT for what depends on the number of ranks;
// INTERNAL when the backend says that it is another one than was asked for.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateGradientSync(const SyncOptions& options,
                                                                 const WorkerGroup& group);

// Collective: the collectives of all ranks of `group`, over the job's link: through memory with shm and
// cuda_ipc, by streams with grpc, and with links that carry gradients alone (gloo, nccl) as hosts allow.
// Servers have no part in them, so that with kPs workers own the shares of reductions: the first
// job.owners, or all. With kLocal each rank is alone. Blocks until all ranks have come. Errors: those of
// ResolveByHosts() and GroupCollectives::Open().
absl::StatusOr<std::unique_ptr<GroupCollectives>> OpenCollectives(const SyncOptions& options,
                                                                  const WorkerGroup& group,
                                                                  Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_SYNC_FACTORY_H_
