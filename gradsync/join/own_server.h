// A parameter server in the process of a worker: whoever starts workers need start nothing else, and
// what a worker and its own server tell each other crosses no socket.

#ifndef GRADSYNC_GRADSYNC_JOIN_OWN_SERVER_H_
#define GRADSYNC_GRADSYNC_JOIN_OWN_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "ps_server/server.h"

namespace gradsync {

// Serves from Start() on. Not thread-safe.
class OwnServer {
 public:
  // Serves the run of which `group` is, as the server of this worker: listens at its address, by
  // `link`. It waits for the workers' hellos for as long as they take: they wait for each other.
  // Errors: those of ParameterServer::Start().
  static absl::StatusOr<std::unique_ptr<OwnServer>> Start(const WorkerGroup& group,
                                                          std::shared_ptr<StreamLink> link);

  // As other workers reach it, "host:port".
  std::string address() const { return server_->address(); }

  // Ends the run, with UNAVAILABLE for workers that are still in it.
  ~OwnServer();

  // Once: blocks until all workers that it serves have said goodbye, which each does when its backend
  // shuts down, or the run has failed. Errors: those of ParameterServer::Wait().
  absl::Status Wait();

 private:
  OwnServer(std::unique_ptr<ParameterServer> server, int rank);

  const int rank_;
  const std::unique_ptr<ParameterServer> server_;
  absl::Status ended_;   // read once serving_ has ended
  std::thread serving_;  // last: uses the others
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_OWN_SERVER_H_
