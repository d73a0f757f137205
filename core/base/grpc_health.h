// Whether a gRPC server is to be used, for those who ask by the standard health service
// (grpc.health.v1.Health): Kubernetes' probes, grpc_health_probe, load balancers.

#ifndef GRADSYNC_CORE_BASE_GRPC_HEALTH_H_
#define GRADSYNC_CORE_BASE_GRPC_HEALTH_H_

#include <memory>
#include <string>

#include "grpcpp/generic/async_generic_service.h"

namespace gradsync {

// gRPC's own health service reads a request, of any size, before anybody can be asked for anything.
// A server of ours reads nothing of strangers, so this one answers without reading: for the server
// as a whole, whatever service the request names. Thread-safe. Must outlive the server's calls.
class GrpcHealth {
 public:
  GrpcHealth();
  ~GrpcHealth();

  // NOT_SERVING at first. Tells those who watch.
  void SetServing(bool serving);

  // What answers a call of `method`, "/grpc.health.v1.Health/Check" or ".../Watch"; null for others.
  // For a CallbackGenericService's CreateReactor().
  grpc::ServerGenericBidiReactor* Answer(const std::string& method);

 private:
  struct State;
  class Check;
  class Watch;

  const std::shared_ptr<State> state_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_GRPC_HEALTH_H_
