// The two ends of a gRPC stream, that which Connect() opens and that which a listener accepts. Private
// to core/links/grpc_stream.

#ifndef GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_
#define GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/alarm_clock.h"
#include "core/base/deadline.h"
#include "core/base/grpc_health.h"
#include "core/base/mutex.h"
#include "core/base/secret_proof.h"
#include "core/links/frame_stream.h"
#include "core/links/silence_watch.h"
#include "core/links/stream_registry.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/async_generic_service.h"

namespace gradsync {

// Opens a stream on `channel`, which leads to `address`, as one that has `proof` and `secret`, which
// may be empty. Where the peer refuses what it shows of the secret, it asks for a new challenge and
// tries once more. Blocks until the peer has accepted, at most until the deadline. `watch`, if there
// is one, looks at it from then on. Errors: as StreamLink::Connect(); the sink is not called then.
absl::StatusOr<std::shared_ptr<FrameStream>> OpenClientStream(
    const std::string& address, std::shared_ptr<grpc::Channel> channel, const StreamProof& proof,
    const std::string& secret, SilenceWatch* watch, std::shared_ptr<FrameSink> sink,
    Deadline deadline);

// Makes a stream of each call of gradsync.proto.FrameLink.Exchange, and gives challenges; other calls
// are UNIMPLEMENTED, but for those that `health`, if there is one, answers. With a secret, streams
// without a proof of it are refused.
// Thread-safe. Must outlive the server that it is registered with.
class FrameService : public grpc::CallbackGenericService {
 public:
  FrameService(StreamAcceptor acceptor, std::string secret, std::shared_ptr<GrpcHealth> health,
               std::shared_ptr<SilenceWatch> watch)
      : acceptor_(std::move(acceptor)),
        checker_(std::move(secret)),
        health_(std::move(health)),
        watch_(std::move(watch)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  StreamRegistry& registry() { return *registry_; }

 private:
  const StreamAcceptor acceptor_;
  ProofChecker checker_;
  const std::shared_ptr<GrpcHealth> health_;
  const std::shared_ptr<SilenceWatch> watch_;
  const std::shared_ptr<StreamRegistry> registry_ = std::make_shared<StreamRegistry>();
  AlarmClock clock_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_
