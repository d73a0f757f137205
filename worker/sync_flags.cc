#include "worker/sync_flags.h"

#include "absl/flags/flag.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "gradsync/join/server_weights.h"

ABSL_FLAG(std::string, topology, "local", "local, ps (parameter servers) or ring");
ABSL_FLAG(std::string, link, "auto",
          "auto, grpc, tcp, shm, gloo, nccl or cuda_ipc (GPUs of one host)");
ABSL_FLAG(std::string, update, "worker",
          "who runs the optimizer: worker, or owner (server or ring rank)");
ABSL_FLAG(std::string, consistency, "bsp",
          "bsp: every step waits for all; ssp:S: for those more than S steps behind; asp: for "
          "nobody. The last two: ps with --update=owner, over grpc or tcp");
ABSL_FLAG(
    std::string, compression, "none",
    "of gradients on the wire (grpc, tcp): none, fp16, bf16, or topk:R (ps only), which sends the "
    "largest R of each chunk, 0 < R <= 1, and the rest later");
ABSL_FLAG(std::vector<std::string>, servers, {},
          "parameter servers, host:port,...; none: workers are the servers (--owners)");
ABSL_FLAG(std::string, server_weights, "auto",
          "each server's share of the gradient: auto (by which hosts servers and workers are on: "
          "one server beside every worker and some elsewhere get the shares that keep all hosts "
          "equally busy), equal, or a number for each, w0,w1,...");
ABSL_FLAG(int, owners, 0,
          "with --topology=ps and no servers of their own, so that workers are the servers: the "
          "first so many own the gradients' chunks; 0: all");
ABSL_FLAG(int, connections, 0,
          "connections of grpc or tcp per pair of peers; 0: 2 for ps, 4 for ring");

namespace gradsync {

absl::StatusOr<SyncOptions> SyncFromFlags() {
  SyncOptions options;
  GS_ASSIGN_OR_RETURN(options.job,
                      ParseJobSpec({absl::GetFlag(FLAGS_topology), absl::GetFlag(FLAGS_link),
                                    absl::GetFlag(FLAGS_update), absl::GetFlag(FLAGS_consistency),
                                    absl::GetFlag(FLAGS_compression)}));
  options.job.owners = absl::GetFlag(FLAGS_owners);
  options.job.connections = absl::GetFlag(FLAGS_connections);
  options.servers = absl::GetFlag(FLAGS_servers);
  GS_ASSIGN_OR_RETURN(options.server_weights,
                      ParseServerWeights(absl::GetFlag(FLAGS_server_weights)));
  return options;
}

}  // namespace gradsync
