#include "core/links/server_link.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/credentials.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

class ServerListener : public StreamListener {
 public:
  ServerListener(std::unique_ptr<GrpcConnections> grpc, std::unique_ptr<StreamListener> tcp)
      : grpc_(std::move(grpc)), tcp_(std::move(tcp)) {}

  std::string address() const override { return tcp_->address(); }

 private:
  const std::unique_ptr<GrpcConnections> grpc_;
  const std::unique_ptr<StreamListener> tcp_;  // ends first: it hands connections to the other
};

class ServerLink : public StreamLink {
 public:
  ServerLink(GrpcLinkOptions grpc, TcpLinkOptions tcp)
      : grpc_(std::move(grpc)), tcp_(std::move(tcp)), connecting_(NewGrpcLink(grpc_)) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    GS_RETURN_IF_ERROR(CheckListener(tcp_.credentials, address));
    GS_ASSIGN_OR_RETURN(std::unique_ptr<GrpcConnections> grpc,
                        ServeGrpcConnections(grpc_, acceptor));
    TcpLinkOptions tcp = tcp_;
    // Owned by the listener, which outlives the calls.
    tcp.others = [connections = grpc.get()](int descriptor) { connections->Adopt(descriptor); };
    GS_ASSIGN_OR_RETURN(std::unique_ptr<StreamListener> listener,
                        NewTcpLink(std::move(tcp))->Listen(address, std::move(acceptor)));
    return std::make_unique<ServerListener>(std::move(grpc), std::move(listener));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    return connecting_->Connect(address, connection, std::move(sink), deadline);
  }

 private:
  const GrpcLinkOptions grpc_;
  const TcpLinkOptions tcp_;
  const std::shared_ptr<StreamLink> connecting_;
};

}  // namespace

std::shared_ptr<StreamLink> NewServerLink(GrpcLinkOptions grpc, TcpLinkOptions tcp) {
  return std::make_shared<ServerLink>(std::move(grpc), std::move(tcp));
}

}  // namespace gradsync
