#include "ps_server/server.h"

#include <utility>

#include "absl/memory/memory.h"
#include "core/base/status_macros.h"
#include "core/group/liveness.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(
    const ServerOptions& options) {
  auto service = std::make_unique<Service>(options.run_id, options.attempt, options.timeout,
                                           options.on_event, options.limits);
  service->WatchRun(FailureTimeout(options.failure_timeout, options.timeout),
                    options.connect_store);
  Service* const acceptor = service.get();
  const absl::Duration arrival =
      options.arrival_timeout > absl::ZeroDuration() ? options.arrival_timeout : options.timeout;
  auto server = absl::WrapUnique(new ParameterServer(std::move(service), arrival));
  GS_ASSIGN_OR_RETURN(
      server->listener_,
      options.link->Listen(options.listen, [acceptor](std::shared_ptr<FrameStream> stream) {
        return acceptor->Accept(std::move(stream));
      }));
  return server;
}

ParameterServer::~ParameterServer() {
  Stop(absl::UnavailableError("the server ended"));
  listener_.reset();
}

absl::Status ParameterServer::Wait() { return service_->Wait(deadline_, arrival_); }

}  // namespace gradsync
