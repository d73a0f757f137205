#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/alarm_clock.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/grpc_conversions.h"
#include "core/base/host_port.h"
#include "core/base/local_address.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/group/grpc_store.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "proto/challenge.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"

namespace gradsync {
namespace {

constexpr int kKeepaliveMs = 20'000;
// The server keeps the deadline; this is how much longer the client waits for what it says then.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kReconnectInterval = absl::Seconds(1);
// Before who was told at once that nobody serves the store yet asks again.
constexpr absl::Duration kRefusedPause = absl::Milliseconds(100);
constexpr absl::Duration kSilentWait = absl::Seconds(10);  // after which a user hears of it
// How long the host may take to say whether anybody listens.
constexpr absl::Duration kHostPatience = absl::Milliseconds(500);
// How long a watch waits for its challenge.
constexpr absl::Duration kProofPatience = absl::Seconds(5);
constexpr char kLate[] = "none in time";

using Stub = proto::Rendezvous::Stub;

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
  // A name may lead elsewhere once rank 0 is there; gRPC looks it up every 30 s at most otherwise.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // A proxy for the web, named in the environment, does not lead to a neighbour in the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Connections are not shared with other channels of this process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

// What all calls of a client share; watches keep it alive.
struct Connection {
  Connection(const std::string& address, const Credentials& credentials, std::string key)
      : address(address),
        key(std::move(key)),
        secret(credentials.secret),
        channel(grpc::CreateCustomChannel(address, credentials.channel, ChannelArguments())),
        stub(proto::Rendezvous::NewStub(channel)),
        door(proto::Door::NewStub(channel)) {}

  // Makes a call that is cancelled at the deadline; then it ends with DEADLINE_EXCEEDED and kLate.
  // By our clock, since gRPC's timers are not to be relied on (core/base/alarm_clock.h).
  template <typename Request, typename Reply>
  grpc::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply, Deadline deadline,
                    const std::string& join = "") {
    for (int attempt = 0;; ++attempt) {
      grpc::ClientContext context;
      if (!join.empty()) context.AddMetadata("gradsync-join-bin", join);
      ShowKey(&context);
      grpc::Status status = ShowProof(&context, deadline);
      if (!status.ok()) return status;
      status =
          Run(&context, deadline, [&] { return (stub.get()->*method)(&context, request, reply); });
      if (!RefusesProof(status) || attempt > 0) return status;
    }
  }

  // Whether a call ended because of its proof, which may have come too late, or to another process
  // than its challenge was from. Nothing was done then; the next proof is of a new challenge.
  bool RefusesProof(const grpc::Status& status) {
    if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED || secret.empty()) return false;
    MutexLock lock(&mutex);
    proofs.reset();
    return true;
  }

  // Asks for nothing, and so at once, as nobody.
  grpc::Status Probe(Deadline deadline, bool wait_for_connection) {
    grpc::ClientContext context;
    context.set_wait_for_ready(wait_for_connection);
    proto::GetRequest request;
    request.set_timeout_us(0);
    proto::ValueReply reply;
    return Run(&context, deadline, [&] { return stub->Get(&context, request, &reply); });
  }

  grpc::Status Run(grpc::ClientContext* context, Deadline deadline,
                   const std::function<grpc::Status()>& call) {
    std::atomic<bool> late{false};
    const AlarmClock::Ticket alarm = clock.Set(deadline, [&] {
      late = true;
      context->TryCancel();
    });
    grpc::Status status(grpc::StatusCode::CANCELLED, "");
    if (Begin(context)) status = call();
    End(context);
    clock.Cancel(alarm);
    if (late && status.error_code() == grpc::StatusCode::CANCELLED) {
      status = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, kLate);
    }
    return status;
  }

  // Where the job has a secret, a proof of it; of a challenge that is not about to be too old.
  grpc::Status ShowProof(grpc::ClientContext* context, Deadline deadline) {
    if (secret.empty()) return grpc::Status::OK;
    const MonotonicTime now = MonotonicTime::Now();
    {
      MutexLock lock(&mutex);
      if (proofs != nullptr && now - challenged < ProofChecker::kLifetime / 2) {
        context->AddMetadata("gradsync-proof", proofs->Next());
        return grpc::Status::OK;
      }
    }
    grpc::ClientContext asking;
    proto::ChallengeReply reply;
    const grpc::Status status = Run(&asking, deadline, [&] {
      return door->Challenge(&asking, proto::ChallengeRequest(), &reply);
    });
    if (!status.ok()) return status;
    MutexLock lock(&mutex);
    proofs = std::make_unique<ProofMaker>(secret, reply.challenge());
    challenged = now;
    context->AddMetadata("gradsync-proof", proofs->Next());
    return grpc::Status::OK;
  }

  void ShowKey(grpc::ClientContext* context) const {
    if (!key.empty()) context->AddMetadata("gradsync-key", key);
  }

  // A call that Abandon() cancels, until End(). False when there is nothing left to ask.
  bool Begin(grpc::ClientContext* context) {
    MutexLock lock(&mutex);
    calls.insert(context);
    return abandoned.ok();
  }

  void End(grpc::ClientContext* context) {
    MutexLock lock(&mutex);
    calls.erase(context);
  }

  void Abandon(absl::Status reason) {
    MutexLock lock(&mutex);
    if (!abandoned.ok()) return;
    abandoned = std::move(reason);
    for (grpc::ClientContext* context : calls) context->TryCancel();
  }

  // The caller's status, with what gRPC does not know: the address and the key.
  absl::Status Explain(const grpc::Status& status, absl::string_view key) {
    if (status.ok()) return absl::OkStatus();
    {
      MutexLock lock(&mutex);
      if (!abandoned.ok()) return abandoned;
    }
    const absl::Status cause = ToAbslStatus(status);
    // Of a process of the job, not of the store.
    if (absl::IsAborted(cause) || BeginsWithCulprit(cause.message())) return cause;
    // We cancel nothing but watches, so this is the server's end.
    const absl::StatusCode code =
        absl::IsCancelled(cause) ? absl::StatusCode::kUnavailable : cause.code();
    // What the server says names the key; what gRPC itself says does not.
    const std::string what =
        absl::StrContains(cause.message(), key) ? "" : absl::StrCat("\"", key, "\": no answer: ");
    // The store's process is gone, or about to go.
    const char* const whose =
        code == absl::StatusCode::kUnavailable ? "rank 0, which holds the store, is lost: " : "";
    return absl::Status(code,
                        absl::StrCat(whose, "store at ", address, ": ", what, cause.message()));
  }

  const std::string address;
  std::string key;  // constant once the connection is shared
  const std::string secret;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<Stub> stub;
  const std::unique_ptr<proto::Door::Stub> door;
  AlarmClock clock;
  Mutex mutex;
  std::set<grpc::ClientContext*> calls ABSL_GUARDED_BY(mutex);  // under way
  absl::Status abandoned ABSL_GUARDED_BY(mutex);                // why, or OK
  std::unique_ptr<ProofMaker> proofs ABSL_GUARDED_BY(mutex);    // null: ask for a challenge
  MonotonicTime challenged ABSL_GUARDED_BY(mutex);
};

// When to give up a call whose deadline the server keeps.
Deadline WithGrace(Deadline deadline) { return Deadline::In(deadline.remaining() + kGrace); }

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

// A thread that waits for the answer to a call without deadline, Get or Attend, which the destructor
// cancels. It waits on a condition of its own: one that waits in a synchronous call of gRPC serves
// all connections of the process meanwhile, and hands them over to gRPC's other threads and back
// (docs/internals/grpc_link.md).
class GrpcWatcher : public KeyValueStore::Watcher {
 public:
  using Method = void (Stub::async::*)(grpc::ClientContext*, const proto::GetRequest*,
                                       proto::ValueReply*, std::function<void(grpc::Status)>);

  GrpcWatcher(std::shared_ptr<Connection> connection, Method method, absl::string_view key,
              std::function<void(absl::StatusOr<std::string>)> callback)
      : thread_([this, connection = std::move(connection), method, key = std::string(key),
                 callback = std::move(callback)] {
          proto::ValueReply reply;
          const grpc::Status status = Ask(*connection, method, key, &reply);
          if (status.ok()) return callback(std::move(*reply.mutable_value()));
          if (!cancelled_) callback(connection->Explain(status, key));
        }) {}

  ~GrpcWatcher() override {
    cancelled_ = true;
    for (grpc::ClientContext& context : contexts_) context.TryCancel();
    thread_.join();
  }

 private:
  grpc::Status Ask(Connection& connection, Method method, const std::string& key,
                   proto::ValueReply* reply) {
    grpc::Status status;
    for (grpc::ClientContext& context : contexts_) {
      status = AskOnce(connection, method, key, &context, reply);
      if (!connection.RefusesProof(status)) break;
    }
    return status;
  }

  static grpc::Status AskOnce(Connection& connection, Method method, const std::string& key,
                              grpc::ClientContext* context, proto::ValueReply* reply) {
    connection.ShowKey(context);
    grpc::Status status = connection.ShowProof(context, Deadline::In(kProofPatience));
    if (!status.ok()) return status;
    proto::GetRequest request;
    request.set_key(key);
    status = grpc::Status(grpc::StatusCode::CANCELLED, "");
    if (connection.Begin(context)) {
      Notification answered;
      (connection.stub->async()->*method)(context, &request, reply, [&](grpc::Status answer) {
        status = std::move(answer);
        answered.Notify();
      });
      answered.WaitForNotification();
    }
    connection.End(context);
    return status;
  }

  std::atomic<bool> cancelled_{false};
  std::array<grpc::ClientContext, 2> contexts_;  // the second: where the first proof was refused
  std::thread thread_;                           // last: uses all of the above
};

class GrpcStore : public ConnectedStore {
 public:
  explicit GrpcStore(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    proto::SetReply reply;
    return connection_->Explain(
        connection_->Call(&Stub::Set, MakeSetRequest(key, value), &reply, deadline), key);
  }

  absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                          Deadline deadline) override {
    proto::ValueReply reply;
    const grpc::Status status =
        connection_->Call(&Stub::SetIfAbsent, MakeSetRequest(key, value), &reply, deadline);
    if (!status.ok()) return connection_->Explain(status, key);
    return std::move(*reply.mutable_value());
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    proto::GetRequest request;
    request.set_key(key.data(), key.size());
    SetTimeout(request, deadline);
    proto::ValueReply reply;
    const grpc::Status status = connection_->Call(&Stub::Get, request, &reply, WithGrace(deadline));
    if (!status.ok()) return connection_->Explain(status, key);
    return std::move(*reply.mutable_value());
  }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                     int world_size, absl::string_view value,
                                                     Deadline deadline) override {
    proto::AllGatherRequest request;
    request.set_key(key.data(), key.size());
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_value(value.data(), value.size());
    SetTimeout(request, deadline);
    proto::AllGatherReply reply;
    const grpc::Status status =
        connection_->Call(&Stub::AllGather, request, &reply, WithGrace(deadline));
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
    proto::FailRequest request;
    request.set_prefix(prefix.data(), prefix.size());
    request.set_reason(reason.data(), reason.size());
    proto::ValueReply reply;
    const grpc::Status status = connection_->Call(&Stub::Fail, request, &reply, deadline);
    if (!status.ok()) return connection_->Explain(status, prefix);
    return std::move(*reply.mutable_value());
  }

  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    constexpr GrpcWatcher::Method kGet = &Stub::async::Get;
    return std::make_unique<GrpcWatcher>(connection_, kGet, key, std::move(callback));
  }

  std::unique_ptr<Watcher> Attend(absl::string_view key) override {
    constexpr GrpcWatcher::Method kAttend = &Stub::async::Attend;
    return std::make_unique<GrpcWatcher>(connection_, kAttend, key,
                                         [](const absl::StatusOr<std::string>&) {});
  }

  void Abandon(absl::Status reason) override { connection_->Abandon(std::move(reason)); }
  const std::string& address() const override { return connection_->address; }

 private:
  const std::shared_ptr<Connection> connection_;
};

// Waits until somebody answers. Errors: DEADLINE_EXCEEDED; LostStoreHolder() when the host takes
// connections and nobody answers for `failure_timeout`. Looks are counted, not time, which passes
// also while this process does not run. A wait of kSilentWait calls `on_long`, once.
absl::Status AwaitServer(Connection& connection, Deadline deadline, absl::Duration failure_timeout,
                         const std::function<void()>& on_long) {
  const Deadline silent = Deadline::In(kSilentWait);
  bool told = false;
  absl::Duration deaf;
  while (true) {
    const Deadline look = std::min(deadline, Deadline::In(kReconnectInterval));
    const grpc::Status status = connection.Probe(look, /*wait_for_connection=*/true);
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                      status.error_message() == kLate;
    if (!late && status.error_code() != grpc::StatusCode::UNAVAILABLE) return absl::OkStatus();
    if (deadline.passed()) return absl::DeadlineExceededError("no answer");
    if (silent.passed() && !std::exchange(told, true)) on_long();
    if (!late) {
      absl::SleepFor(std::min(kRefusedPause, deadline.remaining()));
      continue;
    }
    const bool listens = HostAccepts(connection.address, kHostPatience);
    deaf = listens ? deaf + kReconnectInterval : absl::ZeroDuration();
    if (deaf >= failure_timeout) return LostStoreHolder(connection.address, failure_timeout);
    // The pause between two attempts is one of gRPC's timers, too.
    grpc::experimental::ChannelResetConnectionBackoff(connection.channel.get());
  }
}

// Why the channel is not connected, in gRPC's words: a call that does not wait for the connection
// fails with them.
std::string LastFailure(Connection& connection) {
  const grpc::Status status = connection.Probe(Deadline::In(absl::Milliseconds(100)),
                                               /*wait_for_connection=*/false);
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? status.error_message()
                                                              : "no answer";
}

absl::StatusOr<std::shared_ptr<Connection>> Reach(
    const std::string& address, const Credentials& credentials, const std::string& key,
    Deadline deadline, absl::Duration failure_timeout,
    const std::function<void(const std::string&)>& notice) {
  GS_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(address));
  auto connection = std::make_shared<Connection>(address, credentials, key);
  const auto why = [&] {
    const std::string host = DescribeHost(place.host);
    return absl::StrCat(host.empty() ? "" : absl::StrCat(" (", host, ")"), ": ",
                        LastFailure(*connection));
  };
  const absl::Status answered = AwaitServer(*connection, deadline, failure_timeout, [&] {
    if (notice) notice(absl::StrCat("waiting for rank 0: no store at ", address, " yet", why()));
  });
  if (absl::IsDeadlineExceeded(answered)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "store at ", address, ": expected a store there, found none by the deadline", why()));
  }
  GS_RETURN_IF_ERROR(answered);
  return connection;
}

}  // namespace

absl::Status LostStoreHolder(absl::string_view address, absl::Duration failure_timeout) {
  return absl::UnavailableError(absl::StrCat("rank 0 lost: no sign of life for ",
                                             absl::FormatDuration(failure_timeout),
                                             " of the store that it holds at ", address));
}

absl::StatusOr<std::shared_ptr<ConnectedStore>> ConnectStore(const std::string& address,
                                                             const Credentials& credentials,
                                                             Deadline deadline,
                                                             const std::string& key) {
  GS_ASSIGN_OR_RETURN(
      std::shared_ptr<Connection> connection,
      Reach(address, credentials, key, deadline, absl::InfiniteDuration(), nullptr));
  return std::make_shared<GrpcStore>(std::move(connection));
}

absl::StatusOr<std::shared_ptr<ConnectedStore>> EnterStore(
    const std::string& address, const Credentials& credentials, StorePass* pass, Deadline deadline,
    absl::Duration failure_timeout, const std::function<void(const std::string&)>& notice) {
  GS_ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection,
                      Reach(address, credentials, /*key=*/"", deadline, failure_timeout, notice));
  constexpr size_t kMaxRunIdBytes = 512;
  if (pass->run_id.size() > kMaxRunIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--run_id: expected at most ", kMaxRunIdBytes,
                                                   " bytes, found ", pass->run_id.size()));
  }
  proto::JoinRequest request;
  request.set_run_id(pass->run_id);
  request.set_attempt(pass->attempt);
  request.set_rank(pass->rank);
  request.set_server(pass->server);
  request.set_nonce(NewJobKey());
  proto::JoinReply reply;
  const Deadline patience =
      Deadline::In(failure_timeout);  // whoever serves the store does not wait
  const grpc::Status status =
      connection->Call(&Stub::Join, proto::Nothing(), &reply,
                       std::min(WithGrace(deadline), patience), request.SerializeAsString());
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        absl::StrCat("store at ", address, ": expected a store there, found another service"));
  }
  if (!status.ok()) {
    const absl::Status refused = ToAbslStatus(status);
    if (absl::IsDeadlineExceeded(refused) && patience.passed()) {
      return LostStoreHolder(address, failure_timeout);
    }
    return absl::Status(refused.code(),
                        absl::StrCat("store at ", address, ": ", refused.message()));
  }
  pass->key = connection->key = reply.key();
  return std::make_shared<GrpcStore>(std::move(connection));
}

}  // namespace gradsync
