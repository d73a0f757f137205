#include "ps_server/service.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "ps_server/window_host.h"

namespace gradsync {
namespace {

// How long the last words may take to be heard. A peer that is stopped hears none of them, and its
// streams take another second to close (core/links/grpc_frame_stream.cc): together less than the
// two seconds within which whoever is left of a job ends.
constexpr absl::Duration kFarewell = absl::Milliseconds(700);

// And how long streams may take to close after all workers have said goodbye, on a slow network.
constexpr absl::Duration kClosing = absl::Milliseconds(2500);

// How often to look whether workers live.
constexpr absl::Duration kWatch = absl::Milliseconds(500);

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

// The answer to HOST, with which a stream may begin.
absl::Status SendHost(FrameStream& stream) {
  GS_ASSIGN_OR_RETURN(const proto::Host own, OwnHost());
  OutgoingFrame frame = FrameOf(proto::FrameHeader::HOST);
  SetPayload(own.SerializeAsString(), &frame);
  stream.Send(std::move(frame));
  stream.Finish();
  return absl::OkStatus();
}

// What a worker says that names nobody.
std::string FailureOf(absl::string_view name, const absl::Status& told) {
  return absl::IsDeadlineExceeded(told) ? absl::StrCat("nobody is known to have failed, but ", name,
                                                       " waited in vain: ", told.message())
                                        : absl::StrCat(name, ": failed: ", told.message());
}

AdmissionRules RulesOf(const ServiceLimits& limits) {
  AdmissionRules rules;
  rules.limits = {limits.max_memory, limits.max_message};
  rules.key = limits.key;
  rules.proof = limits.proof;
  return rules;
}

}  // namespace

// One stream. Its fields belong to the stream's callbacks, which come one at a time; but `stream`
// is read by all, and `rank` once it has finished.
class Service::Session : public FrameSink {
 public:
  Session(Service* service, std::shared_ptr<FrameStream> stream)
      : stream(std::move(stream)), service_(service) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    service_->OnFrame(*this, header, std::move(payload));
  }
  void OnPeerFinished() override { service_->OnPeerFinished(*this); }
  void OnClosed(absl::Status status) override { service_->OnClosed(*this, status); }

  const std::shared_ptr<FrameStream> stream;
  bool member = false;  // said a hello that was not turned away alone
  int rank = -1;        // until the run has admitted it
  int connection = 0;
  bool left = false;  // goodbye said, or turned away
  int ignored = 0;    // frames after that

 private:
  Service* const service_;
};

Service::Service(std::string run_id, int attempt, absl::Duration timeout, ServerEventSink sink,
                 ServiceLimits limits)
    : timeout_(timeout),
      sink_(std::move(sink)),
      admission_(run_id, attempt, RulesOf(limits)),
      membership_({run_id, attempt, limits.key, limits.credentials, activity_,
                   [this](absl::Status status) { Fail(std::move(status)); }}) {}

Service::~Service() = default;

void Service::WatchRun(absl::Duration failure_timeout, StoreConnector connect) {
  membership_.Watch(failure_timeout, std::move(connect));
}

absl::Status Service::JoinRun(const std::string& store, int server) {
  return membership_.Join(store, server);
}

std::shared_ptr<FrameSink> Service::Accept(std::shared_ptr<FrameStream> stream) {
  absl::Status welcome = admission_.Enter(stream);
  if (!welcome.ok()) {
    stream->Cancel(std::move(welcome));
    return nullptr;
  }
  return std::make_shared<Session>(this, std::move(stream));
}

absl::Status Service::Wait(Deadline deadline, absl::Duration arrival) {
  PatientDeadline patience(deadline);
  mutex_.Lock();
  while (!ended_ && !admission_.complete() && !patience.Passed()) {
    changed_.WaitWithDeadline(&mutex_, std::min(patience.next_look(), Deadline::In(kWatch)));
    mutex_.Unlock();
    EndOverdue();
    mutex_.Lock();
  }
  if (!ended_ && !admission_.complete()) {
    std::string missing = admission_.Missing();
    mutex_.Unlock();
    // Workers say hello when all of the run are there, so who has not come is what hellos wait for.
    const std::string absent = membership_.DescribeMissing();
    if (!absent.empty()) missing = absl::StrCat(absent, "; ", missing);
    Lost(absl::DeadlineExceededError(
        absl::StrCat(missing, " within ", absl::FormatDuration(arrival),
                     " (the server's --timeout=", absl::FormatDuration(timeout_), ")")));
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
  while (admission_.open() > 0) {
    changed_.WaitWithDeadline(&mutex_, farewell.next_look());
    if (farewell.Passed()) break;
  }
  absl::Status status = status_;
  mutex_.Unlock();
  membership_.Leave(status);
  return status;
}

absl::Status Service::Drain(int signal, absl::string_view address) {
  if (!admission_.complete()) {
    return absl::FailedPreconditionError("expected all workers of the run, some have not come");
  }
  return membership_.AskToDrain(signal, address);
}

// Workers that have settled wait without a deadline of their own, because others may have many
// steps to go. Those must do them, though: a process that was stopped keeps its streams open.
void Service::EndIfSilent() {
  const ShardRouter* const run = router();
  if (run == nullptr) return;
  const MonotonicTime now = MonotonicTime::Now();
  const std::vector<int> silent = run->shard().AwaitedSince(looked_);
  looked_ = now;
  if (silent.empty()) {
    silence_.reset();
    return;
  }
  if (!silence_.has_value()) silence_.emplace(Deadline::In(timeout_));
  if (!silence_->PassedAt(now)) return;
  Fail(absl::DeadlineExceededError(absl::StrCat(
      admission_.Name(silent[0]), " pushed nothing for ", absl::FormatDuration(timeout_),
      ", while others have done all of their steps and wait for it")));
}

void Service::EndOverdue() {
  const std::vector<std::shared_ptr<FrameStream>> late = admission_.TakeLate(timeout_);
  int rank = -1;
  {
    MutexLock lock(&mutex_);
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
        absl::StrCat(admission_.Name(rank), " lost: finished its stream without goodbye")));
  }
}

// The group may know better why a worker is gone.
void Service::Lost(absl::Status status) {
  if (!membership_.Report(status)) Fail(std::move(status));
}

absl::Status Service::LostStream(int rank, const absl::Status& status) const {
  // Where nobody else watches the rank, nobody will know better.
  if (membership_.member() && PatienceWith(status) > absl::ZeroDuration()) {
    return CutLink(absl::StrCat("rank ", admission_.Number(rank)),
                   admission_.ServerNumbered(*membership_.number()), status);
  }
  return absl::UnavailableError(absl::StrCat(
      admission_.Name(rank),
      " lost: ", status.ok() ? "closed its stream without goodbye" : status.ToString()));
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
  admission_.Close(status);
  membership_.End();
  changed_.SignalAll();
  return true;
}

void Service::TellMembers(const absl::Status& status) {
  // Of a run that has ended: nobody is added.
  const std::vector<MemberStream> members = admission_.members();
  if (const ShardRouter* const run = router(); run != nullptr) run->shard().Halt();
  for (const MemberStream& member : members) SendFailure(*member.stream, status);
}

ServerStats Service::stats() const {
  ServerStats stats;
  if (const ShardRouter* const run = router(); run != nullptr) {
    stats.server = *membership_.number();
    run->Count(&stats);
  }
  return stats;
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
  if (session.rank >= 0) return OnMembersFrame(session, header, std::move(payload));
  if (header.kind() == proto::FrameHeader::HOST) {
    const absl::Status told = SendHost(*session.stream);
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

void Service::OnMembersFrame(Session& session, const proto::FrameHeader& header, Payload payload) {
  if (header.kind() == proto::FrameHeader::FAILED) {
    const absl::Status told = FailureIn(header);
    const bool knows = BeginsWithCulprit(told.message());
    if (knows || router() != nullptr) {
      session.left = true;  // it ends its stream as it said
      // What the group has agreed on. Who published it may have ended, and the store with it.
      if (knows && absl::IsAborted(told)) return Fail(told);
      // The group may know better why.
      return Lost(absl::AbortedError(knows ? std::string(told.message())
                                           : FailureOf(admission_.Name(session.rank), told)));
    }
  }
  const absl::Status status = WithinMemory(
      absl::StrCat(proto::FrameHeader::Kind_Name(header.kind()), " of rank ", session.rank),
      [&] { return Dispatch(session, header, std::move(payload)); });
  // Where this server has no memory, the worker that brought the frame did nothing wrong.
  if (!status.ok()) {
    Fail(absl::IsResourceExhausted(status) ? status
                                           : Annotate(admission_.Name(session.rank), status));
  }
}

// An error turns this stream away; errors of the whole group end the run.
absl::Status Service::OnHello(Session& session, const Payload& payload) {
  return admission_.Hello(session.stream, payload, [&](const Admission::Admitted& admitted) {
    session.member = true;
    session.rank = admitted.member.rank;
    session.connection = admitted.member.connection;
    // One that differs ends the run, and hears of that end like all others.
    session.left = admitted.differs != nullptr;
    membership_.Learn(admitted.hello->hello, admitted.key);
    {
      MutexLock lock(&mutex_);
      changed_.SignalAll();
    }
    const absl::Status status =
        admitted.differs != nullptr ? admitted.differs()
        : admitted.complete ? WithinMemory("server's share of the plan", [this] { return Begin(); })
                            : absl::OkStatus();
    if (!status.ok()) Fail(status);
  });
}

absl::Status Service::Begin() {
  ShardRouterOptions options;
  options.timeout = timeout_;
  options.sink = sink_;
  options.activity = activity_;
  options.on_lost = [this](absl::Status status) { Lost(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::unique_ptr<ShardRouter> run,
                      ShardRouter::Create(admission_.roster(), std::move(options)));
  const std::vector<MemberStream> members = admission_.members();
  for (const MemberStream& member : members) run->Connect(member);
  MutexLock lock(&mutex_);
  begun_ = true;
  changed_.SignalAll();
  if (ended_) return absl::OkStatus();
  router_storage_ = std::move(run);
  router_.store(router_storage_.get(), std::memory_order_release);
  for (const MemberStream& member : members) router_storage_->Welcome(member);
  return absl::OkStatus();
}

absl::Status Service::Dispatch(Session& session, const proto::FrameHeader& header,
                               Payload payload) {
  ShardRouter* const run = router();
  // Before the run has begun: whoever finds a difference between workers is the first to know of it.
  if (header.kind() == proto::FrameHeader::FAILED) return FailureIn(header);
  if (run == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected nothing before the answer to HELLO, "
                     "found ",
                     proto::FrameHeader::Kind_Name(header.kind())));
  }
  GS_RETURN_IF_ERROR(run->Route(session.rank, session.connection, header, std::move(payload)));
  if (header.kind() == proto::FrameHeader::GOODBYE) OnGoodbye(session);
  return absl::OkStatus();
}

void Service::OnGoodbye(Session& session) {
  session.left = true;
  session.stream->Send(FrameOf(proto::FrameHeader::GOODBYE));
  session.stream->Finish();
  const ShardRouter& run = *router();
  MutexLock lock(&mutex_);
  if (++goodbyes_ == run.streams()) {
    run.shard().End();
    End(absl::OkStatus());
  }
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

void Service::OnClosed(Session& session, const absl::Status& status) {
  admission_.Leave(session.stream.get());
  {
    MutexLock lock(&mutex_);
    finished_.erase(
        std::remove_if(finished_.begin(), finished_.end(),
                       [&](const auto& finished) { return finished.first == &session; }),
        finished_.end());
  }
  if (!session.member) return;
  if (!session.left) Lost(LostStream(session.rank, status));
  admission_.CountOut();
  MutexLock lock(&mutex_);
  changed_.SignalAll();
}

}  // namespace gradsync
