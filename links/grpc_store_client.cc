#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/grpc_deadline.h"
#include "base/grpc_status.h"
#include "base/host_port.h"
#include "base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "links/grpc_store.h"
#include "proto/rendezvous.grpc.pb.h"

namespace gradsync {
namespace {

constexpr int kKeepaliveMs = 20'000;
// The server keeps the deadline; this is how much longer the client waits for what it says then.
constexpr absl::Duration kGrace = absl::Seconds(2);

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A repeated exchange would be a rank that comes twice.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Workers often start before rank 0 listens; gRPC's own back-off grows to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  // A proxy for the web, named in the environment, does not lead to a neighbour in the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Connections are not shared with other channels of this process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

// What all calls of a client share; watches keep it alive.
struct Connection {
  Connection(const std::string& address, const Credentials& credentials)
      : address(address),
        channel(grpc::CreateCustomChannel(address, credentials.channel, ChannelArguments())),
        stub(proto::Rendezvous::NewStub(channel)) {}

  // The caller's status, with what gRPC does not know: the address and the key.
  absl::Status Explain(const grpc::Status& status, absl::string_view key) const {
    if (status.ok()) return absl::OkStatus();
    const absl::Status cause = ToAbslStatus(status);
    // Of a process of the job, not of the store.
    if (absl::IsAborted(cause)) return cause;
    // We cancel nothing but watches, so this is the server's end.
    const absl::StatusCode code =
        absl::IsCancelled(cause) ? absl::StatusCode::kUnavailable : cause.code();
    // What the server says names the key; what gRPC itself says does not.
    const std::string what =
        absl::StrContains(cause.message(), key) ? "" : absl::StrCat("\"", key, "\": no answer: ");
    return absl::Status(code, absl::StrCat("store at ", address, ": ", what, cause.message()));
  }

  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<proto::Rendezvous::Stub> stub;
};

// `grace` for calls whose deadline the server keeps.
void SetDeadline(grpc::ClientContext& context, Deadline deadline,
                 absl::Duration grace = absl::ZeroDuration()) {
  if (deadline.never()) return;
  context.set_deadline(GrpcDeadline(Deadline::In(deadline.remaining() + grace)));
}

template <typename Request>
void SetTimeout(Request& request, Deadline deadline) {
  if (deadline.never()) return;
  request.set_timeout_us(absl::ToInt64Microseconds(deadline.remaining()));
}

proto::SetRequest MakeSetRequest(absl::string_view key, absl::string_view value) {
  proto::SetRequest request;
  request.set_key(key.data(), key.size());
  request.set_value(value.data(), value.size());
  return request;
}

// A thread that waits in a Get without deadline, which the destructor cancels.
class GrpcWatcher : public KeyValueStore::Watcher {
 public:
  GrpcWatcher(std::shared_ptr<Connection> connection, absl::string_view key,
              std::function<void(absl::StatusOr<std::string>)> callback)
      : thread_([this, connection = std::move(connection), key = std::string(key),
                 callback = std::move(callback)] {
          proto::GetRequest request;
          request.set_key(key);
          proto::ValueReply reply;
          const grpc::Status status = connection->stub->Get(&context_, request, &reply);
          if (status.ok()) return callback(std::move(*reply.mutable_value()));
          if (!cancelled_) callback(connection->Explain(status, key));
        }) {}

  ~GrpcWatcher() override {
    cancelled_ = true;
    context_.TryCancel();
    thread_.join();
  }

 private:
  std::atomic<bool> cancelled_{false};
  grpc::ClientContext context_;
  std::thread thread_;  // last: uses all of the above
};

class GrpcStore : public KeyValueStore {
 public:
  explicit GrpcStore(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    proto::SetReply reply;
    return connection_->Explain(
        connection_->stub->Set(&context, MakeSetRequest(key, value), &reply), key);
  }

  absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                          Deadline deadline) override {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    proto::ValueReply reply;
    const grpc::Status status =
        connection_->stub->SetIfAbsent(&context, MakeSetRequest(key, value), &reply);
    if (!status.ok()) return connection_->Explain(status, key);
    return std::move(*reply.mutable_value());
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    grpc::ClientContext context;
    SetDeadline(context, deadline, kGrace);
    proto::GetRequest request;
    request.set_key(key.data(), key.size());
    SetTimeout(request, deadline);
    proto::ValueReply reply;
    const grpc::Status status = connection_->stub->Get(&context, request, &reply);
    if (!status.ok()) return connection_->Explain(status, key);
    return std::move(*reply.mutable_value());
  }

  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view key, int rank, int world_size,
                                                    absl::string_view value,
                                                    Deadline deadline) override {
    grpc::ClientContext context;
    SetDeadline(context, deadline, kGrace);
    proto::ExchangeRequest request;
    request.set_key(key.data(), key.size());
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_value(value.data(), value.size());
    SetTimeout(request, deadline);
    proto::ExchangeReply reply;
    const grpc::Status status = connection_->stub->Exchange(&context, request, &reply);
    if (!status.ok()) return connection_->Explain(status, key);
    if (reply.values_size() != world_size) {
      return absl::DataLossError(absl::StrCat("store at ", connection_->address, ": exchange \"",
                                              key, "\": expected ", world_size, " parts, found ",
                                              reply.values_size()));
    }
    return std::vector<std::string>(std::make_move_iterator(reply.mutable_values()->begin()),
                                    std::make_move_iterator(reply.mutable_values()->end()));
  }

  absl::StatusOr<std::string> Fail(absl::string_view prefix, absl::string_view reason,
                                   Deadline deadline) override {
    grpc::ClientContext context;
    SetDeadline(context, deadline);
    proto::FailRequest request;
    request.set_prefix(prefix.data(), prefix.size());
    request.set_reason(reason.data(), reason.size());
    proto::ValueReply reply;
    const grpc::Status status = connection_->stub->Fail(&context, request, &reply);
    if (!status.ok()) return connection_->Explain(status, prefix);
    return std::move(*reply.mutable_value());
  }

  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    return std::make_unique<GrpcWatcher>(connection_, key, std::move(callback));
  }

 private:
  const std::shared_ptr<Connection> connection_;
};

// Why the channel is not connected, in gRPC's words: a call that does not wait for the connection
// fails with them.
std::string LastFailure(const Connection& connection) {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(Deadline::In(absl::Milliseconds(100))));
  proto::GetRequest request;
  request.set_timeout_us(0);
  proto::ValueReply reply;
  const grpc::Status status = connection.stub->Get(&context, request, &reply);
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? status.error_message()
                                                              : "no answer";
}

}  // namespace

absl::StatusOr<std::shared_ptr<KeyValueStore>> ConnectStore(const std::string& address,
                                                            const Credentials& credentials,
                                                            Deadline deadline) {
  GS_RETURN_IF_ERROR(ParseHostPort(address).status());
  auto connection = std::make_shared<Connection>(address, credentials);
  if (!connection->channel->WaitForConnected(GrpcDeadline(deadline))) {
    return absl::DeadlineExceededError(absl::StrCat(
        "store at ", address,
        ": expected a store there, found none by the deadline: ", LastFailure(*connection)));
  }
  return std::make_shared<GrpcStore>(std::move(connection));
}

}  // namespace gradsync
