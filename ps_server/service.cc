#include "ps_server/service.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/links/frames.h"
#include "core/plan/flow_control.h"
#include "core/plan/kinds.h"
#include "core/plan/plan_proto.h"
#include "ps_server/hello_limits.h"
#include "ps_server/service_parts.h"
#include "ps_server/window_host.h"

namespace gradsync {
namespace {

// How long the last words may take to be heard. A peer that is stopped hears none of them, and its
// streams take another second to close (core/links/grpc_stream_ends.cc): together less than the
// two seconds within which whoever is left of a job ends.
constexpr absl::Duration kFarewell = absl::Milliseconds(700);

// And how long streams may take to close after all workers have said goodbye, on a slow network.
constexpr absl::Duration kClosing = absl::Milliseconds(2500);

// How often to look whether workers live.
constexpr absl::Duration kWatch = absl::Milliseconds(500);

// How long a stream may take to say hello once the group is complete: whoever comes then is a
// stranger. Before, a worker may have to wait for the others' streams.
constexpr absl::Duration kPatience = absl::Seconds(5);

// How long after a worker's last frame its stream may close by itself: one that is lost says why.
constexpr absl::Duration kLastSign = absl::Milliseconds(200);

constexpr int kMostIgnored = 16;

// What `work` returns, also where an allocation failed in it.
absl::Status WithinMemory(absl::string_view what, absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the ", what));
  }
}

void SendFailure(FrameStream& stream, const absl::Status& status) {
  OutgoingFrame frame;
  frame.header = FailedHeader(status);
  frame.urgent = true;
  stream.Send(std::move(frame));
  stream.Finish();
}

// What this server is called, as a worker says it.
int NumberOf(const proto::Hello& hello) {
  return hello.server_number() > 0 ? hello.server_number() - 1 : hello.terms().server_index();
}

}  // namespace

Service::Service(std::string run_id, int attempt, absl::Duration timeout, ServerEventSink sink,
                 ServiceLimits limits)
    : timeout_(timeout),
      sink_(std::move(sink)),
      proof_required_(limits.proof),
      credentials_(limits.credentials),
      hello_limits_{limits.max_memory, limits.max_message},
      roster_(std::move(run_id), attempt),
      key_(std::move(limits.key)) {}

Service::~Service() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  JoinMembershipThread();
}

void Service::WatchRun(absl::Duration failure_timeout, StoreConnector connect) {
  failure_timeout_ = failure_timeout;
  connect_store_ = std::move(connect);
  if (failure_timeout < absl::InfiniteDuration()) {
    MutexLock lock(&membership_mutex_);
    membership_ = Thread([this] { SeekMembership(); });
  }
}

// From the first hello on, so that set-up is watched too. A server that cannot reach the store is
// watched by its streams alone, until it can.
void Service::SeekMembership() {
  mutex_.Lock();
  while (!ended_ && !closing_ && run_ == nullptr) {
    if (!MayBecomeMember()) {
      changed_.WaitWithDeadline(&mutex_, Deadline::In(kWatch));
      continue;
    }
    mutex_.Unlock();
    BecomeMember().IgnoreError();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void Service::JoinMembershipThread() {
  MutexLock lock(&membership_mutex_);
  if (membership_.joinable()) membership_.join();
}

std::shared_ptr<FrameSink> Service::Accept(std::shared_ptr<FrameStream> stream) {
  absl::Status welcome;
  {
    MutexLock lock(&mutex_);
    welcome = CheckProof(stream->proof());
    if (welcome.ok()) welcome = guests_.Enter(stream);
  }
  if (!welcome.ok()) {
    stream->Cancel(std::move(welcome));
    return nullptr;
  }
  auto session = std::make_shared<Session>(this, std::move(stream));
  session->self = session;
  return session;
}

absl::Status Service::Wait(Deadline deadline, absl::Duration arrival) {
  PatientDeadline patience(deadline);
  mutex_.Lock();
  while (!ended_ && !roster_.complete() && !patience.Passed()) {
    changed_.WaitWithDeadline(&mutex_, std::min(patience.next_look(), Deadline::In(kWatch)));
    mutex_.Unlock();
    EndOverdue();
    mutex_.Lock();
  }
  if (!ended_ && !roster_.complete()) {
    std::string missing = roster_.Missing();
    const std::shared_ptr<RunMember> run = run_;
    mutex_.Unlock();
    // Workers say hello when all of the run are there, so who has not come is what hellos wait for.
    const std::string absent = run == nullptr ? "" : run->DescribeMissing();
    if (!absent.empty()) missing = absl::StrCat(absent, "; ", missing);
    Lost(absl::DeadlineExceededError(
        absl::StrCat(missing, " within ", absl::FormatDuration(arrival),
                     " (--timeout=", absl::FormatDuration(timeout_), ")")));
    mutex_.Lock();
  }
  // What is made for the workers may be large, and then takes as long as it takes.
  while (!ended_ && !begun_) changed_.WaitWithDeadline(&mutex_, Deadline::In(kWatch));
  activity_->Prove();
  while (!ended_) {
    changed_.WaitWithDeadline(&mutex_, Deadline::In(kWatch));
    mutex_.Unlock();
    EndIfSilent();
    EndOverdue();
    mutex_.Lock();
  }
  PatientDeadline farewell(Deadline::In(status_.ok() ? kClosing : kFarewell));
  while (open_ > 0) {
    changed_.WaitWithDeadline(&mutex_, farewell.next_look());
    if (farewell.Passed()) break;
  }
  absl::Status status = status_;
  mutex_.Unlock();
  JoinMembershipThread();
  LeaveRun(status);
  return status;
}

bool Service::KnowsRun() const { return !ended_ && !store_address_.empty() && number_.has_value(); }

bool Service::MayBecomeMember() const {
  return KnowsRun() && !joined_ && failure_timeout_ < absl::InfiniteDuration() &&
         next_attempt_.passed();
}

RunMemberOptions Service::RunOptions() const {
  RunMemberOptions options;
  options.store = store_address_;
  options.run_id = roster_.run_id();
  options.attempt = roster_.attempt();
  options.server = *number_;
  options.key = key_;
  options.credentials = credentials_;
  return options;
}

absl::Status Service::Drain(int signal, absl::string_view address) {
  RunMemberOptions options;
  {
    MutexLock lock(&mutex_);
    if (!roster_.complete()) {
      return absl::FailedPreconditionError("expected all workers of the run, some have not come");
    }
    if (!KnowsRun()) {
      return absl::FailedPreconditionError("expected a run under way whose store is known");
    }
    options = RunOptions();
  }
  return RunMember::AskToDrain(
      options, {signal, absl::StrCat("server ", options.server, " (", address, ")")});
}

absl::Status Service::JoinRun(const std::string& store, int server) {
  {
    MutexLock lock(&mutex_);
    store_address_ = store;
    number_ = server;
  }
  return BecomeMember();
}

absl::Status Service::BecomeMember() {
  RunMemberOptions options;
  bool again = false;
  {
    MutexLock lock(&mutex_);
    if (!MayBecomeMember()) return absl::OkStatus();
    options = RunOptions();
    joined_ = true;
    again = next_attempt_ != Deadline::At(MonotonicTime::InfinitePast());
  }
  options.failure_timeout = failure_timeout_;
  if (again) options.patience = std::min(options.patience, kWatch);
  options.activity = activity_;
  options.connect = connect_store_;
  options.on_failure = [this](absl::Status status) { Fail(std::move(status)); };
  absl::StatusOr<std::unique_ptr<RunMember>> run = RunMember::Create(options);
  MutexLock lock(&mutex_);
  joined_ = run.ok();
  if (!run.ok()) {
    next_attempt_ = Deadline::In(failure_timeout_ / 2);
    return run.status();
  }
  run_ = *std::move(run);
  return absl::OkStatus();
}

void Service::LeaveRun(const absl::Status& status) {
  std::shared_ptr<RunMember> run;
  {
    MutexLock lock(&mutex_);
    run.swap(run_);
  }
  if (run == nullptr) return;
  if (status.ok()) return run->Leave();
  // Else this server, which ends, would be what is missed. The group may know better already.
  if (absl::IsUnavailable(status)) run->Report(status);
}

// The group may know better why a worker is gone.
void Service::Lost(absl::Status status) {
  std::shared_ptr<RunMember> run;
  {
    MutexLock lock(&mutex_);
    run = run_;
  }
  if (run == nullptr) return Fail(std::move(status));
  run->Report(std::move(status));
}

// Workers that have settled wait without a deadline of their own, because others may have many
// steps to go. Those must do them, though: a process that was stopped keeps its streams open.
void Service::EndIfSilent() {
  const Group* const group = group_.load(std::memory_order_acquire);
  if (group == nullptr) return;
  const MonotonicTime now = MonotonicTime::Now();
  const std::vector<int> silent = group->shard->AwaitedSince(looked_);
  looked_ = now;
  if (silent.empty()) {
    silence_.reset();
    return;
  }
  if (!silence_.has_value()) silence_.emplace(Deadline::In(timeout_));
  if (!silence_->PassedAt(now)) return;
  Fail(absl::DeadlineExceededError(
      absl::StrCat(Name(silent[0]), " pushed nothing for ", absl::FormatDuration(timeout_),
                   ", while others have done all of their steps and wait for it")));
}

absl::Status Service::CheckProof(const StreamProof& proof) const {
  if (proof.run.empty() && proof_required_) {
    return absl::PermissionDeniedError(
        "expected the id of the stream's run in its metadata, found none");
  }
  // Not said which: who knows no run's id is not told one.
  if (!proof.run.empty() && !roster_.run_id().empty() && proof.run != roster_.run_id()) {
    return absl::PermissionDeniedError("this server serves another run than the stream's");
  }
  if (!key_.empty() && !SameSecret(proof.key, key_)) {
    return absl::PermissionDeniedError(
        proof.key.empty() ? "this server serves a job with a key, and the stream brought none"
                          : "this server serves a job with another key than the stream's");
  }
  return absl::OkStatus();
}

void Service::EndOverdue() {
  std::vector<std::shared_ptr<FrameStream>> late;
  int rank = -1;
  {
    MutexLock lock(&mutex_);
    late = guests_.TakeLate(roster_.complete() ? std::min(timeout_, kPatience) : timeout_);
    const MonotonicTime before = MonotonicTime::Now() - kLastSign;
    for (const auto& [session, since] : finished_) {
      if (since < before) rank = session->rank;
    }
  }
  for (const auto& stream : late) {
    stream->Cancel(absl::DeadlineExceededError("the server heard no hello that it could admit"));
  }
  if (rank >= 0) {
    Lost(absl::UnavailableError(
        absl::StrCat(Name(rank), " lost: finished its stream without goodbye")));
  }
}

void Service::Fail(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (!End(status)) return;
  }
  TellMembers(status);
}

bool Service::End(const absl::Status& status) {
  if (ended_) return false;
  ended_ = true;
  status_ = status;
  changed_.SignalAll();
  return true;
}

void Service::TellMembers(const absl::Status& status) {
  std::vector<std::shared_ptr<Session>> members;
  {
    MutexLock lock(&mutex_);
    members = members_;  // of a run that has ended: nobody is added
  }
  const Group* const group = group_.load(std::memory_order_acquire);
  if (group != nullptr) group->shard->Halt();
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
    {
      MutexLock lock(&mutex_);
      stats.server = *number_;
    }
    stats.steps = group->shard->steps();
    group->shard->CountTraffic(&stats);
    stats.shard_bytes = group->shard_bytes;
    stats.workers = group->terms.world_size();
  }
  return stats;
}

std::string Service::Name(int rank) const {
  MutexLock lock(&mutex_);
  return roster_.Name(rank);
}

void Service::OnFrame(Session& session, const proto::FrameHeader& header, Payload payload) {
  if (session.left) {
    // One that was turned away may have had some under way.
    if (!session.member && ++session.ignored > kMostIgnored) {
      session.stream->Cancel(absl::InvalidArgumentError("the stream was turned away"));
    }
    return;
  }
  const Activity::Work work(activity_.get());
  if (session.rank >= 0 && header.kind() == proto::FrameHeader::FAILED) {
    // The group may know better why.
    const absl::Status told = FailureIn(header);
    const bool knows = BeginsWithCulprit(told.message());
    if (knows || group_.load(std::memory_order_acquire) != nullptr) {
      session.left = true;  // it ends its stream as it said
      return Lost(knows ? told
                        : absl::AbortedError(
                              absl::StrCat(Name(session.rank), ": failed: ", told.message())));
    }
  }
  if (session.rank >= 0) {
    const absl::Status status = WithinMemory(
        absl::StrCat(proto::FrameHeader::Kind_Name(header.kind()), " of rank ", session.rank),
        [&] { return Dispatch(session, header, std::move(payload)); });
    // Where this server has no memory, the worker that brought the frame did nothing wrong.
    if (!status.ok()) {
      Fail(absl::IsResourceExhausted(status) ? status : Annotate(Name(session.rank), status));
    }
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
          ? WithinMemory("hello", [&] { return OnHello(session, payload); })
          : absl::InvalidArgumentError(absl::StrCat("expected HELLO first, found ",
                                                    proto::FrameHeader::Kind_Name(header.kind())));
  if (status.ok()) return;
  session.left = true;
  SendFailure(*session.stream, status);
}

// An error turns this stream away; errors of the whole group end the run. What takes a time that the
// message sizes is done without mutex_, which all who end the run need, and for one hello at a time,
// so that strangers cannot multiply the memory that it takes.
absl::Status Service::OnHello(Session& session, const Payload& payload) {
  if (payload.size() > kMaxHelloBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: expected at most ", kMaxHelloBytes, " bytes, found ", payload.size()));
  }
  MutexLock one_at_a_time(&hello_mutex_);
  const StreamProof proof = session.stream->proof();
  const auto usable = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_) return CheckProof(proof);  // the run may be known by now
    return status_.ok() ? absl::FailedPreconditionError("the run is over") : status_;
  };
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(usable());
  }
  const std::string bytes = payload.Flat();
  GS_RETURN_IF_ERROR(CheckReadHello(bytes, std::min(kMaxReadHelloBytes, hello_limits_.max_memory)));
  proto::Hello message;
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("hello: not a Hello message");
  }
  if (!proof.run.empty() && proof.run != message.run_id()) {
    return absl::InvalidArgumentError(
        "hello: expected the run that the stream's metadata name, found another");
  }
  GS_RETURN_IF_ERROR(CheckHelloTexts(message));
  std::shared_ptr<const CheckedHello> known;
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(roster_.CheckPlace(message));
    known = roster_.first();
  }
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<const CheckedHello> hello,
                      CheckHello(std::move(message), hello_limits_, known));
  Roster::Difference differs;
  bool complete = false;
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(usable());
    GS_RETURN_IF_ERROR(roster_.CheckPlace(hello->hello));
    if (store_address_.empty()) store_address_ = hello->hello.store();
    if (!number_.has_value()) number_ = NumberOf(hello->hello);
    guests_.Leave(session.stream.get());
    members_.push_back(session.self.lock());
    session.member = true;
    ++open_;
    differs = roster_.Admit(hello);
    if (differs == nullptr) {
      if (key_.empty()) key_ = proof.key;
      session.rank = hello->hello.rank();
      session.connection = hello->hello.connection();
      complete = roster_.complete();
    } else {
      // Not in any place of the run, which it ends, and whose end it hears like all others.
      session.left = true;
    }
    changed_.SignalAll();
  }
  const absl::Status group_status =
      differs != nullptr ? differs()
      : complete ? WithinMemory("server's share of the plan", [this] { return StartGroup(); })
                 : absl::OkStatus();
  if (!group_status.ok()) Fail(group_status);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Shard>> Service::MakeShard(const Roster& roster) {
  const proto::Terms& terms = roster.terms();
  GS_ASSIGN_OR_RETURN(const Consistency consistency, ParseConsistency(terms.consistency()));
  if (terms.windows()) {
    WindowHostOptions options;
    options.shards = roster.shards();
    options.timeout = timeout_;
    options.on_failure = [this](absl::Status status) { Lost(std::move(status)); };
    return MakeWindowShard(roster, std::move(options));
  }
  if (!consistency.bulk()) {
    return AsyncShard::Create(roster.plan(), roster.shards(), terms.server_index(), consistency,
                              sink_, this);
  }
  return ParameterShard::Create(roster.plan(), roster.shards(), terms.server_index(),
                                terms.update_site(),
                                /*holds_first=*/terms.credit() > 1, this);
}

// It changes no more, so that it can be read without the mutex.
const Roster& Service::CompleteRoster() const { return roster_; }

absl::Status Service::StartGroup() {
  const Roster& roster = CompleteRoster();
  auto group = std::make_unique<Group>();
  group->terms = roster.terms();
  const Plan& plan = roster.plan();
  const int server = group->terms.server_index();
  GS_ASSIGN_OR_RETURN(group->shard, MakeShard(roster));
  group->shard->CountIn(activity_);
  if (group->terms.trace_last_step() > 0) {
    group->recorder = std::make_shared<TraceRecorder>(group->terms.trace_first_step(),
                                                      group->terms.trace_last_step());
    group->shard->Record(group->recorder);
  }
  if (!group->shard->window().empty()) {
    GS_ASSIGN_OR_RETURN(proto::Host own, OwnHost());
    own.set_window(group->shard->window());
    group->welcome = own.SerializeAsString();
  }
  group->shard_bytes = roster.shards().bytes(server);
  group->on_their_way = std::vector<std::atomic<int>>(plan.world_size());
  group->folded = std::vector<std::atomic<uint64_t>>(plan.world_size());
  group->answers = std::vector<std::atomic<uint32_t>>(plan.world_size());
  // A message for each chunk costs as much CPU time as 64 KiB of payload. What is owed is less than
  // a batch, so a worker always has at least half of its credit, and one chunk would do.
  group->credit_batch = CreditBatch(group->terms.credit());
  group->keeps_parameters = plan.slots().parameters > 0;
  group->streams.resize(plan.world_size());
  group->order = ServerPushOrder(PushOrder(plan, roster.shards(), server, 0), plan.world_size());
  for (auto& streams : group->streams) streams.resize(group->terms.connections());
  MutexLock lock(&mutex_);
  begun_ = true;
  changed_.SignalAll();
  if (ended_) return absl::OkStatus();
  for (const auto& member : members_) {
    group->streams[member->rank][member->connection] = member->stream;
  }
  group_storage_ = std::move(group);
  group_.store(group_storage_.get(), std::memory_order_release);
  for (const auto& member : members_) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::HELLO);
    if (member->connection == 0) SetPayload(group_storage_->welcome, &frame);
    member->stream->Send(std::move(frame));
  }
  return absl::OkStatus();
}

absl::Status Service::Dispatch(Session& session, const proto::FrameHeader& header,
                               Payload payload) {
  Group* group = group_.load(std::memory_order_acquire);
  // Before the run has begun: whoever finds a difference between workers is the first to know of it.
  if (header.kind() == proto::FrameHeader::FAILED) return FailureIn(header);
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected nothing before the answer to HELLO, "
                     "found ",
                     proto::FrameHeader::Kind_Name(header.kind())));
  }
  GS_RETURN_IF_ERROR(group->shard->Expects(header.kind()));
  switch (header.kind()) {
    case proto::FrameHeader::WINDOWS:
      return OnWindows(session, payload);
    case proto::FrameHeader::PUSH:
      return OnPush(session, header, std::move(payload));
    case proto::FrameHeader::PARAMETERS:
      return OnParameters(session, header, payload);
    case proto::FrameHeader::SHARD:
      return OnShard(session, header);
    case proto::FrameHeader::SETTLE:
      return OnSettle(session);
    case proto::FrameHeader::NORM:
      return group->shard->Norm(session.rank, StepOf(header).step, header.norm());
    case proto::FrameHeader::STATE_REQUEST:
      return OnStateRequest(session);
    case proto::FrameHeader::STATE:
    case proto::FrameHeader::STATE_END:
      return OnState(session, header, payload);
    case proto::FrameHeader::TRACE:
      return OnTrace(session, header);
    case proto::FrameHeader::GOODBYE:
      return OnGoodbye(session);
    default:
      return absl::InvalidArgumentError(absl::StrCat("expected a frame that workers send, found ",
                                                     proto::FrameHeader::Kind_Name(header.kind()),
                                                     " (", header.kind(), ")"));
  }
}

absl::Status Service::OnGoodbye(Session& session) {
  Group& group = *group_.load(std::memory_order_acquire);
  GS_RETURN_IF_ERROR(group.shard->Leave(session.rank));
  session.left = true;
  session.stream->Send(FrameOf(proto::FrameHeader::GOODBYE));
  session.stream->Finish();
  MutexLock lock(&mutex_);
  if (++goodbyes_ == group.terms.world_size() * group.terms.connections()) {
    group.shard->End();
    ended_ = true;
    changed_.SignalAll();
  }
  return absl::OkStatus();
}

// No frame of the session comes after this.
void Service::OnPeerFinished(Session& session) {
  if (session.left) return;
  if (!session.member) {
    session.left = true;
    SendFailure(*session.stream, absl::InvalidArgumentError("expected HELLO, found the end"));
    return;
  }
  MutexLock lock(&mutex_);
  finished_.emplace_back(&session, MonotonicTime::Now());
}

// What the end of a stream of `rank` without a goodbye means.
absl::Status Service::LostStream(int rank, const absl::Status& status) const {
  MutexLock lock(&mutex_);
  // Where nobody else watches the rank, nobody will know better.
  if (run_ != nullptr && PatienceWith(status) > absl::ZeroDuration()) {
    return CutLink(absl::StrCat("rank ", roster_.Number(rank)), roster_.ServerNumbered(*number_),
                   status);
  }
  return absl::UnavailableError(absl::StrCat(
      roster_.Name(rank),
      " lost: ", status.ok() ? "closed its stream without goodbye" : status.ToString()));
}

void Service::OnClosed(Session& session, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    guests_.Leave(session.stream.get());
    finished_.erase(
        std::remove_if(finished_.begin(), finished_.end(),
                       [&](const auto& finished) { return finished.first == &session; }),
        finished_.end());
  }
  if (!session.member) return;
  if (!session.left) {
    Lost(LostStream(session.rank, status));
  }
  MutexLock lock(&mutex_);
  --open_;
  changed_.SignalAll();
}

}  // namespace gradsync
