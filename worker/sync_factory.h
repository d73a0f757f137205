// The one list of topologies and links.

#ifndef GRADSYNC_WORKER_SYNC_FACTORY_H_
#define GRADSYNC_WORKER_SYNC_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sync/gradient_sync.h"
#include "sync/worker_group.h"

namespace gradsync {

// As the flags of the same names have them; see //worker --help.
struct SyncOptions {
  std::string topology = "local";    // local, ps, ring
  std::string link = "auto";         // auto, grpc, shm, gloo, nccl
  std::string update = "worker";     // worker, owner
  std::string consistency = "bsp";   // bsp, ssp:S, asp
  std::string compression = "none";  // none, fp16, bf16, topk:R; the plan must have the same codec
  std::vector<std::string> servers;  // host:port each; for ps
  int connections = 0;               // per pair of peers; 0 chooses the topology's default
};

// Checks everything that can be known before a connection is made.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came; UNIMPLEMENTED never: a
// link that this build lacks is INVALID_ARGUMENT, with the way to get it.
absl::Status ValidateSyncOptions(const SyncOptions& options);

// The link that `options.link` stands for: "" for local, grpc for `auto` where ChooseLink() was not
// asked.
std::string ResolvedLink(const SyncOptions& options);

// Collective, before CreateGradientSync(): what `options.link` stands for among these ranks. `auto`
// takes shm when all ranks, and all servers if there are any, share a host (base/host_identity.h)
// and nothing is to be compressed, grpc otherwise. Rank 0 asks the servers. Blocks until they have
// answered and all ranks have come, each for at most group.timeout. Errors: DEADLINE_EXCEEDED
// naming the ranks that did not come; UNAVAILABLE when the store is lost; on rank 0 those of
// AskServerHosts(), while the others meet the same servers in Bind().
absl::StatusOr<std::string> ChooseLink(const SyncOptions& options, const WorkerGroup& group);

// Connections per pair of peers that will be used; 0 where there are none (local, shm).
int ResolvedConnections(const SyncOptions& options);

// Creates the backend. `options` must have passed ValidateSyncOptions(). Opens no connection yet;
// GradientSync::Bind() does.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateGradientSync(const SyncOptions& options,
                                                                 const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SYNC_FACTORY_H_
