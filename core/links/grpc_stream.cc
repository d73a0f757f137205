#include "core/links/grpc_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/grpc_conversions.h"
#include "core/base/status_macros.h"
#include "core/links/grpc_channel_arguments.h"
#include "core/links/grpc_frame_stream.h"
#include "core/links/silence_watch.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace gradsync {
namespace {

// Idle connections are asked for signs of life so often that silence is noticed in time. How long a
// peer's process may take to answer is another matter, since one that is stopped may go on.
GrpcKeepalive KeepaliveOf(const GrpcLinkOptions& options) {
  const absl::Duration stopped = options.stopped_timeout;
  if (options.failure_timeout == absl::InfiniteDuration()) return {stopped / 2, stopped / 2};
  return {2 * SilenceFor(options.failure_timeout).interval,
          std::max(stopped, 4 * options.failure_timeout)};
}

GrpcTuning TuningOf(const GrpcLinkOptions& options) {
  return {KeepaliveOf(options), options.probe_bandwidth};
}

class GrpcListener : public GrpcConnections {
 public:
  GrpcListener(StreamAcceptor acceptor, const GrpcLinkOptions& options,
               std::shared_ptr<SilenceWatch> watch)
      : options_(options),
        service_(std::move(acceptor), options.credentials.secret, options.health,
                 std::move(watch)) {}

  ~GrpcListener() override {
    if (server_ == nullptr) return;
    service_.registry().CancelAllAndWait(absl::UnavailableError("the listener closed"));
    server_->Shutdown(GrpcDeadline(Deadline::Now()));
    server_->Wait();
  }

  absl::Status Listen(const std::string& host, const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, options_.credentials.server, &port);
    Start(&builder);
    if (server_ == nullptr || port <= 0) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen at ", address, ": the port is taken or the address is not this host's"));
    }
    address_ = absl::StrCat(host, ":", port);
    return absl::OkStatus();
  }

  absl::Status AwaitConnections() {
    grpc::ServerBuilder builder;
    adopter_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        options_.credentials.server);
    Start(&builder);
    return server_ != nullptr ? absl::OkStatus()
                              : absl::InternalError("gRPC starts no server without a port");
  }

  std::string address() const override { return address_; }

  // What gRPC sets on sockets that it accepts itself, it does not on others'.
  void Adopt(int descriptor) override {
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const auto patience_ms =
        static_cast<unsigned>(absl::ToInt64Milliseconds(KeepaliveOf(options_).timeout));
    setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = descriptor;
    adopter_->HandleNewConnection(&connection);
  }

 private:
  void Start(grpc::ServerBuilder* builder) {
    AddGrpcServerArguments(TuningOf(options_), builder);
    builder->SetMaxReceiveMessageSize(options_.max_message_bytes);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                                static_cast<int>(absl::ToInt64Milliseconds(options_.idle_timeout)));
    builder->RegisterCallbackGenericService(&service_);
    server_ = builder->BuildAndStart();
  }

  const GrpcLinkOptions options_;
  FrameService service_;
  std::unique_ptr<grpc::Server> server_;
  // Null where the server listens itself.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> adopter_;
  std::string address_;
};

std::shared_ptr<SilenceWatch> WatchOf(const GrpcLinkOptions& options) {
  if (options.failure_timeout == absl::InfiniteDuration()) return nullptr;
  return std::make_shared<SilenceWatch>(options.failure_timeout);
}

class GrpcLink : public StreamLink {
 public:
  explicit GrpcLink(GrpcLinkOptions options)
      : options_(std::move(options)), watch_(WatchOf(options_)) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    const size_t colon = address.rfind(':');
    int port = -1;
    if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        port < 0 || port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen at \"", address, "\": expected host:port"));
    }
    GS_RETURN_IF_ERROR(CheckListener(options_.credentials, address));
    auto listener = std::make_unique<GrpcListener>(std::move(acceptor), options_, watch_);
    GS_RETURN_IF_ERROR(listener->Listen(address.substr(0, colon), address));
    return listener;
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    return OpenClientStream(
        address,
        grpc::CreateCustomChannel(address, options_.credentials.channel,
                                  GrpcChannelArguments(TuningOf(options_), connection)),
        options_.proof, options_.credentials.secret, watch_.get(), std::move(sink), deadline);
  }

 private:
  const GrpcLinkOptions options_;
  const std::shared_ptr<SilenceWatch> watch_;  // null: of nobody
};

}  // namespace

std::shared_ptr<StreamLink> NewGrpcLink(GrpcLinkOptions options) {
  return std::make_shared<GrpcLink>(std::move(options));
}

absl::StatusOr<std::unique_ptr<GrpcConnections>> ServeGrpcConnections(
    const GrpcLinkOptions& options, StreamAcceptor acceptor) {
  if (options.credentials.server == nullptr) {
    return absl::InvalidArgumentError(
        "--tls_cert: expected a certificate, to listen, found nothing");
  }
  auto connections = std::make_unique<GrpcListener>(std::move(acceptor), options, WatchOf(options));
  GS_RETURN_IF_ERROR(connections->AwaitConnections());
  return connections;
}

}  // namespace gradsync
