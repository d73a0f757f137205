// A parameter server as an object: what //ps_server runs, and tests run inside their own process.

#ifndef GRADSYNC_PS_SERVER_SERVER_H_
#define GRADSYNC_PS_SERVER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"
#include "ps_server/run_member.h"
#include "ps_server/server_event.h"
#include "ps_server/service.h"
#include "ps_server/shard.h"

namespace gradsync {

struct ServerOptions {
  std::shared_ptr<StreamLink> link;
  std::string listen = "127.0.0.1:0";  // port 0: any
  std::string run_id;                  // empty: the run of the first worker that comes
  int attempt = 0;
  // Until all workers have come, unless arrival_timeout is not zero; and how long one that shares
  // memory may be silent.
  absl::Duration timeout = absl::Seconds(60);
  absl::Duration arrival_timeout = absl::ZeroDuration();
  // What rank 0 may be silent for, and how often this server says that it lives
  // (core/group/heartbeat.h); infinite: it takes no part in the run's failure.
  absl::Duration failure_timeout = absl::Seconds(10);
  StoreConnector connect_store;  // how the run's store is reached; null: over gRPC
  ServiceLimits limits;          // what comes is refused by, before anything is allocated
  ServerEventSink on_event;      // what happens under ssp and asp; may be empty
};

// Serves one run, on threads of the link. Thread-safe. Destroying it ends the run, for workers with
// UNAVAILABLE, and waits until its streams are closed.
class ParameterServer {
 public:
  // Listens from here on. Errors: those of StreamLink::Listen().
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Start(const ServerOptions& options);
  ~ParameterServer();

  // Once: this server is number `server` of the run, which ServerOptions name, and whose store is at
  // `store`, "host:port". From here on it is missed when it is gone, and ends when the run fails;
  // otherwise from the first worker on, if that says where the store is. Waits for the store, for
  // ServerOptions::failure_timeout at most. Errors: those of RunMember::Create().
  absl::Status JoinRun(const std::string& store, int server) {
    return service_->JoinRun(store, server);
  }

  // As workers reach it, "host:port".
  std::string address() const { return listener_->address(); }

  // Blocks until the run is over. Errors: UNAVAILABLE a worker was lost; ABORTED a worker failed;
  // DEADLINE_EXCEEDED not all workers came; FAILED_PRECONDITION plans differ; INVALID_ARGUMENT a
  // worker broke the rules; what Stop() was given.
  absl::Status Wait();

  // Ends the run for all workers with `reason`; does not wait.
  void Stop(absl::Status reason) { service_->Fail(std::move(reason)); }

  // The process was told to end by `signal`: asks the workers to stop after a step that they agree
  // on, so that Wait() returns when they have. Errors: those of Service::Drain().
  absl::Status Drain(int signal) { return service_->Drain(signal, address()); }

  ServerStats stats() const { return service_->stats(); }

 private:
  ParameterServer(std::unique_ptr<Service> service, absl::Duration arrival)
      : service_(std::move(service)), arrival_(arrival), deadline_(Deadline::In(arrival)) {}

  std::unique_ptr<Service> service_;  // outlives the streams
  const absl::Duration arrival_;
  const Deadline deadline_;
  std::unique_ptr<StreamListener> listener_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVER_H_
