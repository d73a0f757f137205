#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/alarm_clock.h"
#include "core/base/deadline.h"
#include "core/base/grpc_conversions.h"
#include "core/base/grpc_health.h"
#include "core/base/host_port.h"
#include "core/base/process_resources.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/group/grpc_store.h"
#include "core/group/key_value_store.h"
#include "core/group/store_door.h"
#include "core/group/store_map.h"
#include "core/group/store_run.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "proto/challenge.pb.h"
#include "proto/rendezvous.grpc.pb.h"

namespace gradsync {
namespace {

constexpr int kKeepaliveMs = 20'000;
// Of a request, whatever it holds besides a value.
constexpr int kMaxRequestBytes = static_cast<int>(StoreMap::kMaxValueBytes) + (64 << 10);
// Answers are out long before, but for one that a stopped member does not take in.
constexpr absl::Duration kFarewell = absl::Milliseconds(500);

proto::ValueReply Reply(const std::string& value) {
  proto::ValueReply reply;
  reply.set_value(value);
  return reply;
}

proto::AllGatherReply Reply(const std::vector<std::string>& values) {
  proto::AllGatherReply reply;
  reply.mutable_values()->Reserve(static_cast<int>(values.size()));
  for (const std::string& value : values) reply.add_values(value);
  return reply;
}

// How many calls are open. Thread-safe.
class OpenCalls {
 public:
  void Begin() {
    MutexLock lock(&mutex_);
    ++count_;
  }

  void End() {
    MutexLock lock(&mutex_);
    --count_;
    changed_.SignalAll();
  }

  int count() const {
    MutexLock lock(&mutex_);
    return count_;
  }

  void AwaitNone(Deadline deadline) {
    MutexLock lock(&mutex_);
    while (count_ > 0 && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What calls share.
struct Store {
  StoreMap map;
  AlarmClock clock;
  StoreDoor door;
  ProofChecker checker;
  OpenCalls attending;  // Attend, which members do as long as they are there
  OpenCalls calls;      // of any kind

  Store(StoreDoorOptions options, const std::string& secret)
      : map(StoreMap::kMaxBytes, GrpcStoreServer::WhyNobodyCanCome),
        door(std::move(options)),
        checker(secret) {}
};

// One call of Rendezvous. A stub reads a request before its handler runs, so that anybody could make
// the store hold messages of any size; here a request is read when the call has shown the key. It is
// kept by gRPC until the answer is written; what ends a wait first (a value, the alarm, the caller's
// leaving) is decided by the map.
class Call : public grpc::ServerGenericBidiReactor {
 public:
  Call(Store* store, grpc::GenericCallbackServerContext* context)
      : store_(store), path_(context->method()), method_(path_) {
    store_->calls.Begin();
    if (path_ == kChallenge) {
      Challenge();
      return;
    }
    absl::Status welcome = store_->checker.Check(Metadata(*context, "gradsync-proof"));
    if (!welcome.ok()) {
      Finish(ToGrpcStatus(welcome));
      return;
    }
    if (!absl::ConsumePrefix(&method_, kService)) {
      welcome = absl::Status(absl::StatusCode::kUnimplemented,
                             absl::StrCat("this server has only ", kService));
    } else if (method_ == "Join") {
      Join(Metadata(*context, "gradsync-join-bin"));
      return;
    } else {
      welcome = store_->door.Check(Metadata(*context, "gradsync-key"));
    }
    if (welcome.ok()) {
      StartRead(&request_);
    } else {
      Finish(ToGrpcStatus(welcome));
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(ToGrpcStatus(absl::InvalidArgumentError("expected a request")));
    if (method_ == "Set") return Handle(&Call::Set);
    if (method_ == "SetIfAbsent") return Handle(&Call::SetIfAbsent);
    if (method_ == "Fail") return Handle(&Call::Fail);
    if (method_ == "Get") return Handle(&Call::Get);
    if (method_ == "AllGather") return Handle(&Call::AllGather);
    if (method_ == "Attend") return Handle(&Call::Attend);
    Finish(ToGrpcStatus(
        absl::Status(absl::StatusCode::kUnimplemented, "this store has no such method")));
  }

  // May run while a handler does.
  void OnCancel() override {
    cancelled_ = true;
    store_->map.Cancel(ticket_);
    if (attends_) Miss();
  }

  void OnDone() override {
    store_->clock.Cancel(alarm_);
    if (attends_) store_->attending.End();
    store_->calls.End();
    delete this;
  }

 private:
  static constexpr absl::string_view kService = "/gradsync.proto.Rendezvous/";
  static constexpr absl::string_view kChallenge = "/gradsync.proto.Door/Challenge";

  static std::string Metadata(const grpc::GenericCallbackServerContext& context, const char* name) {
    const auto found = context.client_metadata().find(name);
    if (found == context.client_metadata().end()) return "";
    return std::string(found->second.data(), found->second.size());
  }

  template <typename Request>
  void Handle(void (Call::*handler)(const Request&)) {
    Request request;
    const grpc::Status parsed =
        grpc::SerializationTraits<Request>::Deserialize(&request_, &request);
    if (!parsed.ok()) {
      return Finish(ToGrpcStatus(absl::InvalidArgumentError(
          absl::StrCat("expected a ", Request::descriptor()->name(), ", found other bytes"))));
    }
    request_.Clear();
    (this->*handler)(request);
  }

  template <typename Message>
  void Write(const Message& reply) {
    bool own = false;
    const grpc::Status written =
        grpc::SerializationTraits<Message>::Serialize(reply, &reply_, &own);
    if (!written.ok()) return Finish(written);
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }

  template <typename Result>
  void Answer(const absl::StatusOr<std::shared_ptr<const Result>>& result) {
    if (!result.ok()) return Finish(ToGrpcStatus(result.status()));
    Write(Reply(**result));
  }

  void Challenge() {
    if (!store_->checker.asks()) {
      return Finish(ToGrpcStatus(absl::FailedPreconditionError(
          "the process that was called has no secret (--secret_file), the caller has one")));
    }
    proto::ChallengeReply reply;
    reply.set_challenge(store_->checker.NewChallenge());
    Write(reply);
  }

  // Whoever joins has no key to show, so its request is in the metadata, whose size gRPC limits.
  void Join(const std::string& bytes) {
    proto::JoinRequest request;
    if (!request.ParseFromString(bytes)) {
      return Finish(ToGrpcStatus(absl::InvalidArgumentError(
          "gradsync-join-bin: expected a JoinRequest, found other bytes")));
    }
    const absl::StatusOr<std::string> told =
        store_->door.Join({request.run_id(), request.attempt(), request.rank(), request.server(),
                           request.nonce().substr(0, kMaxNonceBytes)});
    if (!told.ok()) return Finish(ToGrpcStatus(told.status()));
    if (!request.server()) {
      const StoreRun run = {request.run_id(), request.attempt()};
      store_->map.Set(CameKey(run, request.rank()), "").IgnoreError();
    }
    proto::JoinReply reply;
    reply.set_key(*told);
    Write(reply);
  }

  void Set(const proto::SetRequest& request) {
    const absl::Status set = store_->map.Set(request.key(), request.value());
    if (!set.ok()) return Finish(ToGrpcStatus(set));
    Write(proto::SetReply());
  }

  void SetIfAbsent(const proto::SetRequest& request) {
    Answer(store_->map.SetIfAbsent(request.key(), request.value()));
  }

  void Fail(const proto::FailRequest& request) {
    const absl::Status allowed = store_->door.CheckPrefix(request.prefix());
    if (!allowed.ok()) return Finish(ToGrpcStatus(allowed));
    Answer(store_->map.Fail(request.prefix(), request.reason().substr(0, kMaxReasonBytes)));
  }

  void Get(const proto::GetRequest& request) {
    Wait(request, store_->map.Get(request.key(), [this](absl::StatusOr<StoreMap::Value> value) {
      Answer(value);
    }));
  }

  void AllGather(const proto::AllGatherRequest& request) {
    Wait(request, store_->map.AllGather(
                      request.key(), request.rank(), request.world_size(), request.value(),
                      [this](absl::StatusOr<StoreMap::Values> values) { Answer(values); }));
  }

  void Attend(const proto::GetRequest& request) {
    attended_ = request.key();
    store_->attending.Begin();
    attends_ = true;
    if (cancelled_) Miss();
    // Nobody sets a key without a name: only the caller's end, or the store's, ends the wait.
    Wait(proto::GetRequest(),
         store_->map.Get("", [this](absl::StatusOr<StoreMap::Value> value) { Answer(value); }));
  }

  // Whoever attended is gone. May run twice.
  void Miss() { store_->map.Set(attended_, "").IgnoreError(); }

  // OnDone() does not run before the reaction that called this has returned.
  template <typename Request>
  void Wait(const Request& request, StoreMap::Ticket ticket) {
    ticket_ = ticket;
    if (cancelled_) store_->map.Cancel(ticket);
    if (!request.has_timeout_us()) return;
    alarm_ = store_->clock.Set(Deadline::In(absl::Microseconds(request.timeout_us())),
                               [store = store_, ticket] { store->map.Expire(ticket); });
  }

  static constexpr size_t kMaxNonceBytes = 64;
  // It travels as a status, in 8 KiB of metadata, where a byte may take three.
  static constexpr size_t kMaxReasonBytes = 2048;

  Store* const store_;  // outlives all calls
  const std::string path_;
  absl::string_view method_;  // in path_
  grpc::ByteBuffer request_, reply_;
  std::string attended_;  // constant once attends_
  std::atomic<bool> attends_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<StoreMap::Ticket> ticket_{0};
  AlarmClock::Ticket alarm_ = 0;
};

class Service : public grpc::CallbackGenericService {
 public:
  Service(Store* store, std::shared_ptr<GrpcHealth> health)
      : store_(store), health_(std::move(health)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    grpc::ServerGenericBidiReactor* const health =
        health_ == nullptr ? nullptr : health_->Answer(context->method());
    return health != nullptr ? health : new Call(store_, context);
  }

 private:
  Store* const store_;
  const std::shared_ptr<GrpcHealth> health_;
};

absl::Status CannotListen(absl::string_view address, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("store: expected to listen at ", address, ", but ", why));
}

// gRPC does not say why it cannot listen at an address; this asks the kernel. OK where it can.
absl::Status WhyNot(const std::string& address) {
  const absl::StatusOr<HostPort> place = ParseHostPort(address);
  if (!place.ok()) return place.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(place->host.c_str(), absl::StrCat(place->port).c_str(), &hints, &found);
  if (failed != 0) return CannotListen(address, gai_strerror(failed));
  const auto free_found = absl::MakeCleanup([found] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, found->ai_addr, found->ai_addrlen) == 0) return absl::OkStatus();
  const int error = errno;
  if (error != EADDRINUSE) return CannotListen(address, std::strerror(error));
  const std::string owner = PortOwner(place->port);
  return CannotListen(address,
                      absl::StrCat(owner.empty() ? "something" : owner, " has port ", place->port,
                                   "; --master or MASTER_PORT gives this job another port"));
}

class ServerImpl : public GrpcStoreServer {
 public:
  ServerImpl(StoreDoorOptions door, const std::string& secret, std::shared_ptr<GrpcHealth> health,
             absl::Duration hearing)
      : store_(std::make_shared<Store>(std::move(door), secret)),
        hearing_(hearing),
        service_(store_.get(), std::move(health)) {}

  ~ServerImpl() override {
    if (store_->map.HasFailures()) store_->attending.AwaitNone(Deadline::In(hearing_));
    store_->map.Close(absl::UnavailableError("the store has shut down"));
    // Lets the answers out before it cancels what is left: by our clock, since gRPC's waits for a
    // time are not to be relied on (core/base/alarm_clock.h).
    store_->calls.AwaitNone(Deadline::In(kFarewell));
    if (server_ != nullptr) server_->Shutdown(GrpcDeadline(Deadline::Now()));
  }

  absl::Status Listen(const std::vector<std::string>& addresses, const Credentials& credentials,
                      absl::Duration idle_timeout) {
    grpc::ServerBuilder builder;
    std::vector<int> ports(addresses.size());
    for (size_t i = 0; i < addresses.size(); ++i) {
      builder.AddListeningPort(addresses[i], credentials.server, &ports[i]);
    }
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetMaxSendMessageSize(-1);
    // Of strangers: connections that never become gRPC's, and those on which nothing is asked.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(idle_timeout)));
    // Otherwise a second server would share a taken port, and each would get some of the clients.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kKeepaliveMs / 4);
    server_ = builder.BuildAndStart();
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (server_ == nullptr || ports[i] == 0) GS_RETURN_IF_ERROR(WhyNot(addresses[i]));
    }
    if (server_ == nullptr) return CannotListen(absl::StrJoin(addresses, ", "), "gRPC cannot");
    port_ = ports.front();
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  int attending() const override { return store_->attending.count(); }
  std::shared_ptr<KeyValueStore> local() const override {
    return NewInMemoryStore(std::shared_ptr<StoreMap>(store_, &store_->map));
  }

 private:
  const std::shared_ptr<Store> store_;
  const absl::Duration hearing_;
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;  // last: uses the service
};

}  // namespace

std::string GrpcStoreServer::WhyNobodyCanCome() {
  if (HasFreeDescriptor()) return "";
  return "rank 0 has no file descriptors left, so that nobody new reaches the store that it holds";
}

absl::StatusOr<std::unique_ptr<GrpcStoreServer>> GrpcStoreServer::Start(
    const std::vector<std::string>& addresses, const Credentials& credentials,
    StoreDoorOptions door, std::shared_ptr<GrpcHealth> health, StoreServerTimes times) {
  for (const std::string& address : addresses) {
    GS_RETURN_IF_ERROR(ParseHostPort(address).status());
    GS_RETURN_IF_ERROR(CheckListener(credentials, address));
  }
  auto server = std::make_unique<ServerImpl>(std::move(door), credentials.secret, std::move(health),
                                             times.hearing);
  GS_RETURN_IF_ERROR(server->Listen(addresses, credentials, times.idle));
  return server;
}

}  // namespace gradsync
