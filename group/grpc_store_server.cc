#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/grpc_deadline.h"
#include "base/grpc_status.h"
#include "base/host_port.h"
#include "base/status_macros.h"
#include "group/alarm_clock.h"
#include "group/grpc_store.h"
#include "group/in_memory_store.h"
#include "group/store_map.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/rendezvous.grpc.pb.h"

namespace gradsync {
namespace {

constexpr int kKeepaliveMs = 20'000;
constexpr absl::Duration kFarewell = absl::Seconds(1);

void Answer(const std::string& value, proto::ValueReply* reply) { reply->set_value(value); }

void Answer(const std::vector<std::string>& values, proto::AllGatherReply* reply) {
  reply->mutable_values()->Reserve(static_cast<int>(values.size()));
  for (const std::string& value : values) reply->add_values(value);
}

// A call that may have to wait. gRPC keeps it until the answer is written; what ends the wait first
// (a value, the alarm, the caller's leaving) is decided by the map.
template <typename Reply>
class Waiting : public grpc::ServerUnaryReactor {
 public:
  Waiting(std::shared_ptr<StoreMap> map, AlarmClock* clock, Reply* reply)
      : map_(std::move(map)), clock_(clock), reply_(reply) {}

  // The callback to leave in the map.
  template <typename Result>
  auto done() {
    return [this](absl::StatusOr<std::shared_ptr<const Result>> result) {
      if (result.ok()) Answer(**result, reply_);
      Finish(ToGrpcStatus(result.status()));
    };
  }

  // Called before the handler returns, hence before OnCancel() and OnDone() can run.
  template <typename Request>
  void Start(StoreMap::Ticket ticket, const Request& request) {
    ticket_ = ticket;
    if (!request.has_timeout_us()) return;
    alarm_ = clock_->Set(Deadline::In(absl::Microseconds(request.timeout_us())),
                         [map = map_, ticket] { map->Expire(ticket); });
  }

  void OnCancel() override { map_->Cancel(ticket_); }
  void OnDone() override {
    clock_->Cancel(alarm_);
    delete this;
  }

 private:
  const std::shared_ptr<StoreMap> map_;
  AlarmClock* const clock_;
  Reply* const reply_;  // gRPC's, lives until OnDone()
  StoreMap::Ticket ticket_ = 0;
  AlarmClock::Ticket alarm_ = 0;
};

class Service : public proto::Rendezvous::CallbackService {
 public:
  Service(std::shared_ptr<StoreMap> map, AlarmClock* clock) : map_(std::move(map)), clock_(clock) {}

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context,
                                const proto::SetRequest* request, proto::SetReply*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(map_->Set(request->key(), request->value())));
    return reactor;
  }

  grpc::ServerUnaryReactor* SetIfAbsent(grpc::CallbackServerContext* context,
                                        const proto::SetRequest* request,
                                        proto::ValueReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::StatusOr<StoreMap::Value> value =
        map_->SetIfAbsent(request->key(), request->value());
    if (value.ok()) Answer(**value, reply);
    reactor->Finish(ToGrpcStatus(value.status()));
    return reactor;
  }

  grpc::ServerUnaryReactor* Fail(grpc::CallbackServerContext* context,
                                 const proto::FailRequest* request,
                                 proto::ValueReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::StatusOr<StoreMap::Value> reason = map_->Fail(request->prefix(), request->reason());
    if (reason.ok()) Answer(**reason, reply);
    reactor->Finish(ToGrpcStatus(reason.status()));
    return reactor;
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const proto::GetRequest* request,
                                proto::ValueReply* reply) override {
    auto* waiting = new Waiting<proto::ValueReply>(map_, clock_, reply);
    waiting->Start(map_->Get(request->key(), waiting->done<std::string>()), *request);
    return waiting;
  }

  grpc::ServerUnaryReactor* AllGather(grpc::CallbackServerContext*,
                                      const proto::AllGatherRequest* request,
                                      proto::AllGatherReply* reply) override {
    auto* waiting = new Waiting<proto::AllGatherReply>(map_, clock_, reply);
    waiting->Start(map_->AllGather(request->key(), request->rank(), request->world_size(),
                                   request->value(), waiting->done<std::vector<std::string>>()),
                   *request);
    return waiting;
  }

 private:
  const std::shared_ptr<StoreMap> map_;
  AlarmClock* const clock_;
};

class ServerImpl : public GrpcStoreServer {
 public:
  ServerImpl() : map_(std::make_shared<StoreMap>()), service_(map_, &clock_) {}

  ~ServerImpl() override {
    map_->Close(absl::UnavailableError("the store has shut down"));
    // Lets the answers out before it cancels what is left.
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(Deadline::In(kFarewell)));
  }

  absl::Status Listen(const std::string& address, const Credentials& credentials) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, credentials.server, &port_);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    // Otherwise a second server would share a taken port, and each would get some of the clients.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kKeepaliveMs / 4);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("store: expected to listen at ", address,
                       ", which is taken or not an address of this host"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  std::shared_ptr<KeyValueStore> local() const override { return NewInMemoryStore(map_); }

 private:
  const std::shared_ptr<StoreMap> map_;
  AlarmClock clock_;
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;  // last: uses the service
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcStoreServer>> GrpcStoreServer::Start(
    const std::string& address, const Credentials& credentials) {
  GS_RETURN_IF_ERROR(ParseHostPort(address).status());
  auto server = std::make_unique<ServerImpl>();
  GS_RETURN_IF_ERROR(server->Listen(address, credentials));
  return server;
}

}  // namespace gradsync
