#ifndef GRADSYNC_BENCHMARKS_RANKS_MEET_RANKS_H_
#define GRADSYNC_BENCHMARKS_RANKS_MEET_RANKS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "links/grpc_store.h"
#include "sync/worker_group.h"

namespace gradsync {

// What RunLocalJob() tells a rank.
struct MeetOptions {
  int rank = 0;
  int world_size = 1;
  std::string master;     // host:port of the store; rank 0 holds it there, port 0 for any
  std::string port_file;  // rank 0 writes the store's host:port here; may be empty
  std::string run_id;
  absl::Duration timeout;
};

// How the ranks of a benchmark find each other: rank 0 starts the store, all connect to
// it. `server` is set on rank 0 only and holds the store. Blocks for at most `timeout`.
// Errors: INVALID_ARGUMENT for a master that is no host:port; those of GrpcStoreServer::Start() and
// ConnectStore().
absl::StatusOr<WorkerGroup> MeetRanks(const MeetOptions& options,
                                      std::unique_ptr<GrpcStoreServer>* server);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_MEET_RANKS_H_
