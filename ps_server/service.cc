#include "ps_server/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "base/host_identity.h"
#include "base/status_macros.h"
#include "links/window_group.h"
#include "plan/frame_fields.h"
#include "plan/shard_map.h"
#include "ps_server/window_shard.h"

namespace gradsync {
namespace {

// How long the last words may take to be heard.
constexpr absl::Duration kFarewell = absl::Seconds(3);

std::string Concatenate(const Payload& payload) {
  std::string all;
  for (absl::Span<const char> part : payload.parts) all.append(part.data(), part.size());
  return all;
}

OutgoingFrame Frame(proto::FrameHeader::Kind kind) {
  OutgoingFrame frame;
  frame.header.set_kind(kind);
  return frame;
}

void SetPayload(std::string bytes, OutgoingFrame* frame) {
  auto kept = std::make_shared<const std::string>(std::move(bytes));
  frame->payload = absl::MakeConstSpan(kept->data(), kept->size());
  frame->released = [kept] {};
}

absl::StatusOr<proto::Host> OwnHost() {
  GS_ASSIGN_OR_RETURN(const HostIdentity identity, ReadHostIdentity());
  proto::Host host;
  host.set_key(identity.Key());
  host.set_name(identity.hostname);
  return host;
}

bool IsForStreamsOnly(proto::FrameHeader::Kind kind) {
  return kind == proto::FrameHeader::PUSH || kind == proto::FrameHeader::PARAMETERS ||
         kind == proto::FrameHeader::NORM;
}

void SendFailure(FrameStream& stream, const absl::Status& status) {
  OutgoingFrame frame = Frame(proto::FrameHeader::FAILED);
  frame.header.mutable_error()->set_code(static_cast<int>(status.code()));
  frame.header.mutable_error()->set_message(std::string(status.message()));
  frame.urgent = true;
  stream.Send(std::move(frame));
  stream.Finish();
}

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace

// One stream. Its fields belong to the stream's callbacks, which come one at a time; but `stream`
// is read by all.
class Service::Session : public FrameSink {
 public:
  Session(Service* service, std::shared_ptr<FrameStream> stream)
      : stream(std::move(stream)), service_(service) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    service_->OnFrame(*this, header, std::move(payload));
  }
  void OnClosed(absl::Status status) override { service_->OnClosed(*this, status); }

  const std::shared_ptr<FrameStream> stream;
  int rank = -1;  // before hello
  int connection = 0;
  bool left = false;  // goodbye said, or turned away
  absl::optional<PushSequence> sequence;
  std::weak_ptr<Session> self;

 private:
  Service* const service_;
};

struct Service::Group {
  proto::Terms terms;
  ShardMap shards;
  std::string welcome;                         // the payload of the answer to HELLO on connection 0
  std::unique_ptr<ParameterShard> shard;       // null with windows
  std::unique_ptr<WindowShard> windows;        // null without
  ShardStateHolder* state = nullptr;           // one of the two
  std::vector<std::vector<SegmentId>> orders;  // by rank
  std::vector<std::vector<std::shared_ptr<FrameStream>>> streams;  // by rank and connection
  std::vector<std::atomic<int>> on_their_way;                      // by rank: pushed, not credited
  std::vector<std::atomic<uint32_t>> folded;                       // by rank: chunks, ever
  uint32_t credit_batch = 1;
  int64_t shard_bytes = 0;
  std::atomic<size_t> results{0};  // sent; spreads them over connections
};

Service::Service(std::string run_id, int attempt, absl::Duration timeout)
    : timeout_(timeout), roster_(std::move(run_id), attempt) {}

Service::~Service() = default;

std::shared_ptr<FrameSink> Service::Accept(std::shared_ptr<FrameStream> stream) {
  auto session = std::make_shared<Session>(this, std::move(stream));
  session->self = session;
  return session;
}

absl::Status Service::Wait(absl::Time deadline) {
  mutex_.Lock();
  while (!ended_ && !roster_.complete() && !changed_.WaitWithDeadline(&mutex_, deadline)) {
  }
  if (!ended_ && !roster_.complete()) {
    const std::string missing = roster_.Missing();
    mutex_.Unlock();
    Fail(absl::DeadlineExceededError(absl::StrCat("the group is not complete in time: ", missing)));
    mutex_.Lock();
  }
  while (!ended_) changed_.Wait(&mutex_);
  const absl::Time farewell = absl::Now() + kFarewell;
  while (open_ > 0 && !changed_.WaitWithDeadline(&mutex_, farewell)) {
  }
  absl::Status status = status_;
  mutex_.Unlock();
  return status;
}

void Service::Fail(absl::Status status) {
  std::vector<std::shared_ptr<Session>> members;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
    members = members_;
    changed_.SignalAll();
  }
  const Group* const group = group_.load(std::memory_order_acquire);
  if (group != nullptr && group->windows != nullptr) group->windows->Halt();
  for (const auto& member : members) SendFailure(*member->stream, status);
}

ServerStats Service::stats() const {
  ServerStats stats;
  stats.tx_bytes = tx_bytes_;
  stats.rx_bytes = rx_bytes_;
  stats.tx_messages = tx_messages_;
  stats.rx_messages = rx_messages_;
  stats.step_tx_bytes = step_tx_bytes_;
  stats.step_rx_bytes = step_rx_bytes_;
  if (const Group* group = group_.load(std::memory_order_acquire); group != nullptr) {
    stats.steps = group->state->steps();
    if (group->windows != nullptr) {
      stats.tx_bytes = stats.step_tx_bytes = group->windows->stored_bytes();
      stats.tx_messages = group->windows->stored_messages();
    }
    stats.shard_bytes = group->shard_bytes;
    stats.server = group->terms.server_index();
    stats.workers = group->terms.world_size();
  }
  return stats;
}

std::string Service::Name(int rank) const {
  MutexLock lock(&mutex_);
  return roster_.Name(rank);
}

void Service::OnFrame(Session& session, const proto::FrameHeader& header, Payload payload) {
  if (session.left) return;
  if (session.rank >= 0) {
    const absl::Status status = Dispatch(session, header, std::move(payload));
    if (!status.ok()) Fail(Prefixed(Name(session.rank), status));
    return;
  }
  if (header.kind() == proto::FrameHeader::HOST) {
    const absl::Status told = OnHost(session);
    session.left = true;
    if (!told.ok()) SendFailure(*session.stream, told);
    return;
  }
  absl::Status status =
      header.kind() == proto::FrameHeader::HELLO
          ? OnHello(session, payload)
          : absl::InvalidArgumentError(absl::StrCat("expected HELLO first, found ",
                                                    proto::FrameHeader::Kind_Name(header.kind())));
  if (status.ok()) return;
  session.left = true;
  SendFailure(*session.stream, status);
}

// An error turns this stream away; errors of the whole group go to Fail().
absl::Status Service::OnHello(Session& session, const Payload& payload) {
  proto::Hello hello;
  if (!hello.ParseFromString(Concatenate(payload))) {
    return absl::InvalidArgumentError("hello: not a Hello message");
  }
  absl::Status group_status;
  {
    MutexLock lock(&mutex_);
    if (ended_) {
      if (status_.ok()) return absl::FailedPreconditionError("the run is over");
      return status_;
    }
    GS_RETURN_IF_ERROR(roster_.Check(hello));
    session.rank = hello.rank();
    session.connection = hello.connection();
    members_.push_back(session.self.lock());
    ++open_;
    group_status = roster_.Admit(hello);
    if (group_status.ok() && roster_.complete()) {
      group_status = StartGroup();
      changed_.SignalAll();
    }
  }
  if (!group_status.ok()) Fail(std::move(group_status));
  return absl::OkStatus();
}

absl::Status Service::StartGroup() {
  auto group = std::make_unique<Group>();
  group->terms = roster_.terms();
  const Plan& plan = roster_.plan();
  const std::vector<double> weights(group->terms.weights().begin(), group->terms.weights().end());
  GS_ASSIGN_OR_RETURN(group->shards, ShardMap::Create(plan, weights));
  const ShardMap& shards = group->shards;
  const int server = group->terms.server_index();
  if (group->terms.windows()) {
    GS_RETURN_IF_ERROR(MakeWindows(*group));
    group->state = group->windows.get();
  } else {
    GS_ASSIGN_OR_RETURN(group->shard, ParameterShard::Create(plan, shards, server,
                                                             group->terms.update_site(), this));
    group->state = group->shard.get();
  }
  group->shard_bytes = shards.bytes(server);
  group->on_their_way = std::vector<std::atomic<int>>(plan.world_size());
  group->folded = std::vector<std::atomic<uint32_t>>(plan.world_size());
  // A message for each chunk costs as much CPU time as 64 KiB of payload. What is owed is less than
  // a batch, so a worker always has credit for at least half a window, and one chunk would do.
  group->credit_batch = std::max(1u, group->terms.credit() / 2u);
  group->streams.resize(plan.world_size());
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    group->orders.push_back(PushOrder(plan, shards, server, rank));
    group->streams[rank].resize(group->terms.connections());
  }
  for (const auto& member : members_) {
    group->streams[member->rank][member->connection] = member->stream;
  }
  group_storage_ = std::move(group);
  group_.store(group_storage_.get(), std::memory_order_release);
  for (const auto& member : members_) {
    OutgoingFrame frame = Frame(proto::FrameHeader::HELLO);
    if (member->connection == 0) SetPayload(group_storage_->welcome, &frame);
    member->stream->Send(std::move(frame));
  }
  return absl::OkStatus();
}

// All workers must be where this server is.
absl::Status Service::MakeWindows(Group& group) {
  GS_ASSIGN_OR_RETURN(proto::Host own, OwnHost());
  WindowShardOptions options;
  for (int rank = 0; rank < group.terms.world_size(); ++rank) {
    const proto::Host& host = roster_.host(rank);
    if (host.key() != own.key()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "shm: expected workers and servers on one host; server ", group.terms.server_index(),
          " is on ", own.name(), " (", own.key(), "), rank ", rank, " on ", host.name(), " (",
          host.key(), "); use --link=grpc"));
    }
    options.names.push_back(roster_.Name(rank));
  }
  for (const std::string& server : roster_.servers()) {
    const size_t index = options.names.size() - group.terms.world_size();
    options.names.push_back(absl::StrCat("server ", index, " (", server, ")"));
  }
  options.plan = roster_.plan();
  options.shards = group.shards;
  options.server = group.terms.server_index();
  options.site = group.terms.update_site();
  options.greeting = WindowGroup::PsGreeting(roster_.run_id(), roster_.attempt(), options.plan);
  options.timeout = timeout_;
  options.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  GS_ASSIGN_OR_RETURN(group.windows, WindowShard::Create(std::move(options)));
  own.set_window(group.windows->address());
  group.welcome = own.SerializeAsString();
  return absl::OkStatus();
}

absl::Status Service::OnHost(Session& session) {
  GS_ASSIGN_OR_RETURN(const proto::Host own, OwnHost());
  OutgoingFrame frame = Frame(proto::FrameHeader::HOST);
  SetPayload(own.SerializeAsString(), &frame);
  session.stream->Send(std::move(frame));
  session.stream->Finish();
  return absl::OkStatus();
}

absl::Status Service::OnWindows(Session& session, const Payload& payload) {
  Group& group = *group_.load(std::memory_order_acquire);
  proto::WindowAddresses windows;
  if (session.rank != 0 || group.windows == nullptr ||
      !windows.ParseFromString(Concatenate(payload))) {
    return absl::InvalidArgumentError(
        "WINDOWS: expected addresses from rank 0 where the terms say windows, found others");
  }
  return group.windows->Begin({windows.addresses().begin(), windows.addresses().end()});
}

absl::Status Service::Dispatch(Session& session, const proto::FrameHeader& header,
                               Payload payload) {
  Group* group = group_.load(std::memory_order_acquire);
  if (header.kind() == proto::FrameHeader::FAILED) {
    return absl::Status(absl::StatusCode::kAborted,
                        absl::StrCat("failed: ", header.error().message()));
  }
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected nothing before the answer to HELLO, "
                     "found ",
                     proto::FrameHeader::Kind_Name(header.kind())));
  }
  if (group->windows != nullptr && IsForStreamsOnly(header.kind())) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected gradients and parameters through windows, found ",
                     proto::FrameHeader::Kind_Name(header.kind())));
  }
  switch (header.kind()) {
    case proto::FrameHeader::WINDOWS:
      return OnWindows(session, payload);
    case proto::FrameHeader::PUSH:
      return OnPush(session, header, std::move(payload));
    case proto::FrameHeader::PARAMETERS:
      return OnParameters(session, header, payload);
    case proto::FrameHeader::NORM:
      return group->shard->Norm(session.rank, StepOf(header).step, header.norm());
    case proto::FrameHeader::STATE_REQUEST:
      return OnStateRequest(session);
    case proto::FrameHeader::STATE:
    case proto::FrameHeader::STATE_END:
      return OnState(session, header, payload);
    case proto::FrameHeader::GOODBYE:
      return OnGoodbye(session);
    default:
      return absl::InvalidArgumentError(absl::StrCat("expected a frame that workers send, found ",
                                                     proto::FrameHeader::Kind_Name(header.kind()),
                                                     " (", header.kind(), ")"));
  }
}

absl::Status Service::TakeCredit(int rank) {
  Group& group = *group_.load(std::memory_order_acquire);
  const int on_their_way = ++group.on_their_way[rank];
  if (on_their_way <= group.terms.credit()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", group.terms.credit(),
                                                 " chunks without credit, found ", on_their_way));
}

absl::Status Service::OnPush(Session& session, const proto::FrameHeader& header, Payload payload) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (!session.sequence.has_value()) {
    session.sequence.emplace(&group.orders[session.rank], session.connection,
                             group.terms.connections());
  }
  const StepOptions step = StepOf(header);
  GS_RETURN_IF_ERROR(TakeCredit(session.rank));
  GS_RETURN_IF_ERROR(session.sequence->Push(SegmentOf(header), step.step));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  step_rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  return group.shard->Push(session.rank, SegmentOf(header), step, std::move(payload));
}

absl::Status Service::OnParameters(Session& session, const proto::FrameHeader& header,
                                   const Payload& payload) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (session.rank != 0) {
    return absl::InvalidArgumentError("parameters: expected them from rank 0 only");
  }
  if (!session.sequence.has_value()) {
    session.sequence.emplace(&group.orders[0], session.connection, group.terms.connections());
  }
  GS_RETURN_IF_ERROR(TakeCredit(0));
  GS_RETURN_IF_ERROR(session.sequence->Parameters(SegmentOf(header)));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<LentBuffer> values,
                      group.shard->SetParameters(SegmentOf(header), payload));
  OnFolded(0);
  OutgoingFrame reply = Frame(proto::FrameHeader::PARAMETERS);
  SetSegment(SegmentOf(header), &reply.header);
  for (int rank = 1; rank < group.terms.world_size(); ++rank) {
    SendValues(*group.streams[rank][session.connection], reply.header, values);
  }
  session.stream->Send(std::move(reply));
  return absl::OkStatus();
}

absl::Status Service::OnStateRequest(Session& session) {
  Group& group = *group_.load(std::memory_order_acquire);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<const ShardState> state, group.state->ExportState());
  for (const ShardState::Piece& piece : state->pieces) {
    OutgoingFrame frame = Frame(proto::FrameHeader::STATE);
    frame.header.set_name(piece.name);
    SetSegment(piece.segment, &frame.header);
    frame.payload = piece.values->bytes();
    frame.released = [state] {};
    session.stream->Send(std::move(frame));
  }
  OutgoingFrame end = Frame(proto::FrameHeader::STATE_END);
  end.header.mutable_step()->set_number(static_cast<uint64_t>(state->step));
  end.header.set_count(static_cast<uint32_t>(state->pieces.size()));
  session.stream->Send(std::move(end));
  return absl::OkStatus();
}

absl::Status Service::OnState(Session& session, const proto::FrameHeader& header,
                              const Payload& payload) {
  ShardStateHolder& shard = *group_.load(std::memory_order_acquire)->state;
  if (session.rank != 0 || session.connection != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state: expected it from rank 0 on connection 0 only, found it on ",
                     "connection ", session.connection));
  }
  if (header.kind() == proto::FrameHeader::STATE) {
    return shard.ImportPiece(header.name(), SegmentOf(header), payload);
  }
  GS_RETURN_IF_ERROR(shard.FinishImport(StepOf(header).step, header.count()));
  session.stream->Send(Frame(proto::FrameHeader::STATE_END));
  return absl::OkStatus();
}

absl::Status Service::OnGoodbye(Session& session) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (!group.state->idle()) {
    return absl::InvalidArgumentError("left in the middle of a step");
  }
  session.left = true;
  session.stream->Send(Frame(proto::FrameHeader::GOODBYE));
  session.stream->Finish();
  MutexLock lock(&mutex_);
  if (++goodbyes_ == group.terms.world_size() * group.terms.connections()) {
    if (group.windows != nullptr) group.windows->Leave();
    ended_ = true;
    changed_.SignalAll();
  }
  return absl::OkStatus();
}

void Service::OnClosed(Session& session, const absl::Status& status) {
  if (session.rank < 0) return;
  if (!session.left) {
    Fail(absl::UnavailableError(absl::StrCat(
        Name(session.rank),
        " lost: ", status.ok() ? "closed its stream without goodbye" : status.ToString())));
  }
  MutexLock lock(&mutex_);
  --open_;
  changed_.SignalAll();
}

void Service::OnFolded(int rank) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (++group.folded[rank] % group.credit_batch != 0) return;
  group.on_their_way[rank] -= static_cast<int>(group.credit_batch);
  OutgoingFrame frame = Frame(proto::FrameHeader::CREDIT);
  frame.header.set_count(group.credit_batch);
  frame.urgent = true;
  group.streams[rank][0]->Send(std::move(frame));
}

void Service::OnResult(SegmentId segment, int64_t step, std::shared_ptr<LentBuffer> values) {
  Group& group = *group_.load(std::memory_order_acquire);
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PULL);
  SetSegment(segment, &header);
  header.mutable_step()->set_number(static_cast<uint64_t>(step));
  const size_t connection = group.results++ % group.terms.connections();
  for (const auto& streams : group.streams) {
    SendValues(*streams[connection], header, values);
    step_tx_bytes_ += static_cast<int64_t>(values->bytes().size());
  }
}

void Service::OnSquares(int64_t step, std::vector<double> squares) {
  Group& group = *group_.load(std::memory_order_acquire);
  auto values = std::make_shared<const std::vector<double>>(std::move(squares));
  for (const auto& streams : group.streams) {
    OutgoingFrame frame = Frame(proto::FrameHeader::SQUARES);
    frame.header.mutable_step()->set_number(static_cast<uint64_t>(step));
    frame.payload = absl::MakeConstSpan(reinterpret_cast<const char*>(values->data()),
                                        values->size() * sizeof(double));
    frame.released = [values] {};
    streams[0]->Send(std::move(frame));
  }
}

void Service::SendValues(FrameStream& stream, proto::FrameHeader header,
                         const std::shared_ptr<LentBuffer>& values) {
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = values->bytes();
  values->Lend();
  frame.released = [values] { values->GiveBack(); };
  tx_bytes_ += static_cast<int64_t>(frame.payload.size());
  ++tx_messages_;
  stream.Send(std::move(frame));
}

}  // namespace gradsync
