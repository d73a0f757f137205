#include "allreduce/ring_gradient_sync.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allreduce/ring_engine.h"
#include "allreduce/ring_tokens.h"
#include "allreduce/work_queue.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/mutex.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"
#include "core/plan/codec.h"
#include "core/plan/ring_schedule.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"
#include "proto/ring.pb.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

struct RingPeersOptions {
  WorkerGroup group;
  std::shared_ptr<StreamLink> link;
  int connections = 4;
  std::string fingerprint;  // of the plan; the previous rank's must be equal

  // A frame from the previous rank, after Connect(): what comes before, of whatever kind, is reported
  // as an error, for there is nobody yet to pass it on to. On a thread of the link; several at a time.
  // An error is reported.
  std::function<absl::Status(const FrameHeader&, Payload)> on_frame;
  // A neighbour is lost or sent nonsense; the status names its rank and address. On a thread of the
  // link.
  std::function<void(absl::Status)> on_error;
};

// A rank's streams: `connections` from the previous rank, which it hears, and as many to the next,
// to which it sends. Each begins with HELLO both ways. Thread-safe.
//
// Destroying it cancels all streams and waits until they are closed; it must not be destroyed on a
// thread of the link.
class RingPeers {
 public:
  explicit RingPeers(RingPeersOptions options);
  ~RingPeers();

  RingPeers(const RingPeers&) = delete;
  RingPeers& operator=(const RingPeers&) = delete;

  // Collective: listens, publishes the address, connects to the next rank, and waits for the
  // previous one. Errors: DEADLINE_EXCEEDED or UNAVAILABLE naming the rank that is missing and its
  // address; what the next rank refused with; what Cancel() was called with.
  absl::Status Connect(Deadline deadline);

  // Queues a frame to the next rank. Never blocks. Only after Connect() succeeded.
  void Send(int connection, OutgoingFrame frame);

  // Ends in good order: says GOODBYE and waits until all streams are closed, which needs both
  // neighbours to do the same. Errors: DEADLINE_EXCEEDED naming a neighbour that does not.
  absl::Status Finish(Deadline deadline);

  // Ends all streams at once. Never blocks; may be called on any thread, but not while holding a
  // lock that on_error takes.
  void Cancel(const absl::Status& reason);

 private:
  class PreviousSink;
  class NextSink;

  absl::Status CheckHello(const FrameHeader& header, const Payload& payload, int* connection,
                          std::string* address);
  absl::Status Greet(const FrameHeader& header, const Payload& payload,
                     const std::shared_ptr<FrameStream>& stream);
  // Ends a stream that does not show the job's key, if the job has one.
  bool IsStranger(FrameStream& stream) const;
  absl::Status ConnectToNext(Deadline deadline);
  absl::Status WaitForNeighbours(Deadline deadline);
  void Greeted();
  void Closed(bool previous, absl::Status status);
  void Lost(bool previous, const absl::Status& status);
  int OfJob(int member) const { return options_.group.RankOfJob(member); }
  std::string Rank(int member) const;  // its name in messages
  std::string PreviousName();
  std::string NextName();

  const RingPeersOptions options_;
  const int previous_;
  const int next_;

  std::atomic<bool> connected_{false};  // Connect() has succeeded
  Mutex mutex_;
  CondVar changed_;
  std::string previous_address_ ABSL_GUARDED_BY(mutex_) = "an unknown address";
  std::string next_address_ ABSL_GUARDED_BY(mutex_) = "an unknown address";
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);   // wakes Connect()
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // ends are expected
  int open_ ABSL_GUARDED_BY(mutex_) = 0;          // streams whose sinks may still be called
  int greeted_ ABSL_GUARDED_BY(mutex_) = 0;       // HELLO replies of the next rank
  std::vector<std::shared_ptr<FrameStream>> from_previous_
      ABSL_GUARDED_BY(mutex_);  // by connection; null until HELLO
  std::vector<std::shared_ptr<FrameStream>> to_next_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamListener> listener_;
};

std::string AddressKey(const WorkerGroup& group, int rank) {
  return group.Key(absl::StrCat("ring/", rank, "/address"));
}

void SendHello(const proto::RingHello& hello, FrameStream& stream) {
  OutgoingFrame frame = FrameOf(FrameHeader::HELLO);
  SetPayload(hello.SerializeAsString(), &frame);
  stream.Send(std::move(frame));
}

// Hears the previous rank on one connection.
class RingPeers::PreviousSink : public FrameSink {
 public:
  PreviousSink(RingPeers* peers, std::shared_ptr<FrameStream> stream)
      : peers_(peers), stream_(std::move(stream)) {}

  void OnFrame(const FrameHeader& header, Payload payload) override {
    switch (state_) {
      case State::kNew: {
        const absl::Status status = peers_->Greet(header, payload, stream_);
        state_ = status.ok() ? State::kGreeted : State::kRefused;
        if (!status.ok()) stream_->Cancel(status);
        return;
      }
      case State::kRefused:
        return;
      case State::kGreeted:
        break;
    }
    if (header.kind() == FrameHeader::GOODBYE) {
      left_ = true;
      return;
    }
    if (header.kind() == FrameHeader::FAILED)
      return peers_->Lost(/*previous=*/true, FailureIn(header));
    const absl::Status status =
        peers_->connected_
            ? peers_->options_.on_frame(header, std::move(payload))
            : absl::FailedPreconditionError(absl::StrCat(
                  DescribeFrame(header), ": expected nothing before all ranks are connected"));
    if (!status.ok())
      peers_->options_.on_error(Annotate(absl::StrCat("from ", peers_->PreviousName()), status));
  }

  // Said before the stream ends here, where the peer would take that for the loss of this rank.
  void OnPeerFinished() override {
    if (state_ != State::kGreeted || left_) return;
    peers_->Lost(/*previous=*/true, absl::UnavailableError("without goodbye"));
  }

  void OnClosed(absl::Status status) override {
    stream_.reset();
    if (state_ == State::kGreeted) peers_->Closed(/*previous=*/true, std::move(status));
  }

 private:
  enum class State { kNew, kGreeted, kRefused };

  RingPeers* const peers_;
  std::shared_ptr<FrameStream> stream_;
  State state_ = State::kNew;
  bool left_ = false;  // said so, in good order
};

// Hears the next rank on one connection: its answer, and the end.
class RingPeers::NextSink : public FrameSink {
 public:
  explicit NextSink(RingPeers* peers) : peers_(peers) {}

  void OnFrame(const FrameHeader& header, Payload) override {
    if (header.kind() == FrameHeader::GOODBYE) return;
    if (header.kind() == FrameHeader::FAILED)
      return peers_->Lost(/*previous=*/false, FailureIn(header));
    if (header.kind() == FrameHeader::HELLO && !greeted_) {
      greeted_ = true;
      return peers_->Greeted();
    }
    peers_->options_.on_error(absl::InvalidArgumentError(
        absl::StrCat("from ", peers_->NextName(), ": ", DescribeFrame(header),
                     ": expected nothing from the next rank")));
  }

  void OnClosed(absl::Status status) override {
    peers_->Closed(/*previous=*/false, std::move(status));
  }

 private:
  RingPeers* const peers_;
  bool greeted_ = false;
};

RingPeers::RingPeers(RingPeersOptions options)
    : options_(std::move(options)),
      previous_(RingPrevious(options_.group.rank, options_.group.world_size)),
      next_(RingNext(options_.group.rank, options_.group.world_size)),
      from_previous_(options_.connections) {}

RingPeers::~RingPeers() {
  Cancel(absl::CancelledError(absl::StrCat("rank ", OfJob(options_.group.rank), " left")));
  listener_.reset();
  MutexLock lock(&mutex_);
  while (open_ > 0) changed_.Wait(&mutex_);
}

bool RingPeers::IsStranger(FrameStream& stream) const {
  const std::string& key = options_.group.key;
  if (key.empty() || SameSecret(stream.proof().key, key)) return false;
  stream.Cancel(absl::PermissionDeniedError(
      absl::StrCat("rank ", OfJob(options_.group.rank), " takes part in a job with another key")));
  return true;
}

absl::Status RingPeers::Connect(Deadline deadline) {
  const WorkerGroup& group = options_.group;
  GS_ASSIGN_OR_RETURN(
      listener_,
      options_.link->Listen(absl::StrCat(group.address, ":0"),
                            [this](std::shared_ptr<FrameStream> s) -> std::shared_ptr<FrameSink> {
                              if (IsStranger(*s)) return nullptr;
                              return std::make_shared<PreviousSink>(this, std::move(s));
                            }));
  GS_RETURN_IF_ERROR(
      group.store->Set(AddressKey(group, group.rank), listener_->address(), deadline));
  GS_RETURN_IF_ERROR(ConnectToNext(deadline));
  GS_RETURN_IF_ERROR(WaitForNeighbours(deadline));
  connected_ = true;
  return absl::OkStatus();
}

absl::Status RingPeers::ConnectToNext(Deadline deadline) {
  const WorkerGroup& group = options_.group;
  const absl::StatusOr<std::string> address = group.store->Get(AddressKey(group, next_), deadline);
  if (!address.ok())
    return Annotate(absl::StrCat("the address of rank ", OfJob(next_)), address.status());
  {
    MutexLock lock(&mutex_);
    next_address_ = *address;
  }
  proto::RingHello hello;
  hello.set_rank(group.rank);
  hello.set_fingerprint(options_.fingerprint);
  hello.set_address(listener_->address());
  for (int connection = 0; connection < options_.connections; ++connection) {
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return failed_;
      ++open_;
    }
    auto stream =
        ConnectToMember(*options_.link, *address, connection, std::make_shared<NextSink>(this),
                        deadline, group.failure_timeout);
    absl::Status failed;
    {
      MutexLock lock(&mutex_);
      if (stream.ok()) {
        to_next_.push_back(*stream);
      } else {
        --open_;
      }
      failed = failed_;
    }
    if (!stream.ok()) {
      if (PatienceWith(stream.status()) > absl::ZeroDuration()) {
        return CutLink(Rank(group.rank), Rank(next_), stream.status());
      }
      return NoConnection(absl::StrCat(Rank(next_), " at ", *address), stream.status());
    }
    if (!failed.ok()) {
      (*stream)->Cancel(failed);
      return failed;
    }
    hello.set_connection(connection);
    SendHello(hello, **stream);
  }
  return absl::OkStatus();
}

absl::Status RingPeers::WaitForNeighbours(Deadline deadline) {
  PatientDeadline patience(deadline);
  bool late = false;
  MutexLock lock(&mutex_);
  for (;;) {
    if (!failed_.ok()) return failed_;
    int heard = 0;
    for (const auto& stream : from_previous_) heard += stream != nullptr;
    if (greeted_ == options_.connections && heard == options_.connections) return absl::OkStatus();
    if (!late || !patience.Passed()) {
      late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
      continue;
    }
    if (heard < options_.connections) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", OfJob(previous_), " at ", previous_address_, " has opened ", heard,
                       " of ", options_.connections, " streams to ", listener_->address(),
                       " (rank ", OfJob(options_.group.rank), ")"));
    }
    return absl::DeadlineExceededError(absl::StrCat("rank ", OfJob(next_), " at ", next_address_,
                                                    " has answered on ", greeted_, " of ",
                                                    options_.connections, " streams"));
  }
}

absl::Status RingPeers::CheckHello(const FrameHeader& header, const Payload& payload,
                                   int* connection, std::string* address) {
  proto::RingHello hello;
  if (header.kind() != FrameHeader::HELLO || !ParsePayload(payload, kMaxGreetingBytes, &hello)) {
    return absl::InvalidArgumentError(absl::StrCat("expected HELLO of rank ", OfJob(previous_),
                                                   ", found ", DescribeFrame(header)));
  }
  if (hello.rank() != previous_) {
    return absl::InvalidArgumentError(absl::StrCat("HELLO to rank ", OfJob(options_.group.rank),
                                                   ": expected member ", previous_,
                                                   " of the group, found member ", hello.rank()));
  }
  if (hello.fingerprint() != options_.fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat("HELLO of rank ", OfJob(previous_),
                                                      ": expected plan ", options_.fingerprint,
                                                      ", found plan ", hello.fingerprint()));
  }
  if (hello.connection() < 0 || hello.connection() >= options_.connections) {
    return absl::InvalidArgumentError(
        absl::StrCat("HELLO of rank ", OfJob(previous_), ": expected a connection below ",
                     options_.connections, ", found ", hello.connection()));
  }
  *connection = hello.connection();
  *address = hello.address();
  return absl::OkStatus();
}

absl::Status RingPeers::Greet(const FrameHeader& header, const Payload& payload,
                              const std::shared_ptr<FrameStream>& stream) {
  int connection = 0;
  std::string address;
  GS_RETURN_IF_ERROR(CheckHello(header, payload, &connection, &address));
  {
    MutexLock lock(&mutex_);
    if (closing_)
      return absl::CancelledError(absl::StrCat("rank ", OfJob(options_.group.rank), " is leaving"));
    if (from_previous_[connection] != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("HELLO of rank ", OfJob(previous_),
                                                     ": connection ", connection, " is taken"));
    }
    from_previous_[connection] = stream;
    previous_address_ = address;
    ++open_;
    changed_.SignalAll();
  }
  OutgoingFrame reply;
  reply.header.set_kind(FrameHeader::HELLO);
  stream->Send(std::move(reply));
  return absl::OkStatus();
}

void RingPeers::Greeted() {
  MutexLock lock(&mutex_);
  ++greeted_;
  changed_.SignalAll();
}

void RingPeers::Send(int connection, OutgoingFrame frame) {
  std::shared_ptr<FrameStream> stream;
  {
    MutexLock lock(&mutex_);
    stream = to_next_[connection];
  }
  stream->Send(std::move(frame));
}

absl::Status RingPeers::Finish(Deadline deadline) {
  std::vector<std::shared_ptr<FrameStream>> to_next;
  std::vector<std::shared_ptr<FrameStream>> from_previous;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    to_next = to_next_;
    from_previous = from_previous_;
  }
  for (const auto& stream : to_next) {
    OutgoingFrame goodbye;
    goodbye.header.set_kind(FrameHeader::GOODBYE);
    stream->Send(std::move(goodbye));
    stream->Finish();
  }
  for (const auto& stream : from_previous) stream->Finish();
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  while (open_ > 0) {
    const bool late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
    if (!late || open_ == 0 || !patience.Passed()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(open_, " streams with rank ", OfJob(previous_), " at ", previous_address_,
                     " and rank ", OfJob(next_), " at ", next_address_, " do not close"));
  }
  return absl::OkStatus();
}

void RingPeers::Cancel(const absl::Status& reason) {
  std::vector<std::shared_ptr<FrameStream>> streams;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    if (failed_.ok()) failed_ = reason;
    streams = to_next_;
    streams.insert(streams.end(), from_previous_.begin(), from_previous_.end());
    changed_.SignalAll();
  }
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->Cancel(reason);
  }
}

void RingPeers::Closed(bool previous, absl::Status status) {
  Lost(previous, status);
  MutexLock lock(&mutex_);
  --open_;
  changed_.SignalAll();
}

void RingPeers::Lost(bool previous, const absl::Status& status) {
  absl::Status lost;
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    lost = LostStream(Rank(options_.group.rank), Rank(previous ? previous_ : next_),
                      previous ? previous_address_ : next_address_,
                      previous ? "the stream from it" : "the stream to it", status);
    if (failed_.ok()) failed_ = lost;
    changed_.SignalAll();
  }
  options_.on_error(std::move(lost));
}

std::string RingPeers::Rank(int member) const { return absl::StrCat("rank ", OfJob(member)); }

std::string RingPeers::PreviousName() {
  MutexLock lock(&mutex_);
  return absl::StrCat("rank ", OfJob(previous_), " at ", previous_address_);
}

std::string RingPeers::NextName() {
  MutexLock lock(&mutex_);
  return absl::StrCat("rank ", OfJob(next_), " at ", next_address_);
}

class RingSync : public SyncEngine {
 public:
  RingSync(EngineHost& host, RingOptions options)
      : SyncEngine(host), options_(std::move(options)) {}

  SyncIdentity identity() const override {
    return {options_.backend, Consistency(), options_.connections};
  }
  UpdateSite update_site() const override { return options_.update_site; }
  std::string Terms() const override {
    return absl::StrCat(options_.connections, " connections, lead ", options_.lead);
  }

  absl::Status CheckPlan(const Plan& plan) const override;
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    return engine_->Launch(step, bucket);
  }
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  bool keeps_parameters() const override { return true; }
  absl::StatusOr<SyncHandle> Gather(int bucket) override {
    return engine_->gather()->Gather(bucket);
  }
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override {
    return engine_->owner().Export(steps, side_channel(), deadline);
  }
  absl::Status Import(const OptimizerState& state, Deadline) override {
    engine_->owner().Import(state);
    return absl::OkStatus();
  }
  WireStats wire_stats() const override { return engine_->wire_stats(); }

  void Halt(const absl::Status& why) override;
  void Fail(const absl::Status& status) override;
  absl::Status Leave(Deadline deadline) override {
    return peers_ != nullptr ? peers_->Finish(deadline) : absl::OkStatus();
  }
  void Close() override;

 private:
  RingEngineOptions EngineOptions(const Plan& plan, const std::vector<GradBucket>& buckets);
  RingPeersOptions PeersOptions(const Plan& plan);
  std::shared_ptr<RingEngine> EngineToEnd();

  const RingOptions options_;

  // What a failure, on another thread, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RingEngine> engine_;  // written once by Connect(), under mutex_
  std::unique_ptr<RingPeers> peers_;    // the same; null with one rank

  TaskQueue tasks_;  // last: its thread uses all of the above
};

absl::Status RingSync::CheckPlan(const Plan& plan) const {
  if (!plan.codec().sparse()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("compression: expected none, fp16 or bf16 for a ring, found ",
                   CodecName(plan.codec()), "; sums of sparse gradients grow at each hop"));
}

RingEngineOptions RingSync::EngineOptions(const Plan& plan,
                                          const std::vector<GradBucket>& buckets) {
  RingEngineOptions engine;
  engine.plan = plan;
  engine.rank = rank();
  engine.update_site = options_.update_site;
  engine.connections = options_.connections;
  engine.lead = options_.lead;
  engine.buckets = buckets;
  engine.recorder = host().worker().recorder;
  engine.defer = [this](TaskQueue::Task task) { tasks_.Add(std::move(task)); };
  engine.report = [this](absl::Status status) { host().Report(std::move(status)); };
  return engine;
}

RingPeersOptions RingSync::PeersOptions(const Plan& plan) {
  RingPeersOptions peers;
  peers.group = host().worker();
  peers.link = options_.link;
  peers.connections = options_.connections;
  peers.fingerprint = plan.fingerprint();
  peers.on_frame = [this](const FrameHeader& header, Payload payload) {
    return engine_->OnFrame(header, std::move(payload));
  };
  peers.on_error = [this](absl::Status status) { host().Report(std::move(status)); };
  return peers;
}

absl::StatusOr<std::vector<GradBucket>> RingSync::Connect(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(std::vector<GradBucket> buckets, AllocateBuckets(plan));
  RingEngineOptions engine = EngineOptions(plan, buckets);
  std::unique_ptr<RingPeers> peers;
  if (world_size() > 1) {
    peers = std::make_unique<RingPeers>(PeersOptions(plan));
    engine.send = [peers = peers.get()](int connection, OutgoingFrame frame) {
      peers->Send(connection, std::move(frame));
    };
  }
  {
    MutexLock lock(&mutex_);
    engine_ = std::make_shared<RingEngine>(std::move(engine));
    peers_ = std::move(peers);
    if (!failure_.ok()) return failure_;
  }
  if (peers_ != nullptr) GS_RETURN_IF_ERROR(peers_->Connect(deadline));
  return buckets;
}

absl::Status RingSync::Broadcast(int64_t, Deadline deadline) {
  if (world_size() == 1) return absl::OkStatus();
  RingBroadcast& broadcast = engine_->broadcast();
  const SyncHandle handle = broadcast.Begin();
  // No parameter is overwritten before its rank said so by coming here.
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  if (rank() == 0) broadcast.SendAll();
  GS_RETURN_IF_ERROR(handle.Wait(deadline));
  return side_channel().Barrier(deadline);
}

absl::Status RingSync::StoreParameters(int bucket, Deadline deadline) {
  if (world_size() > 1) {
    RingBroadcast& broadcast = engine_->broadcast();
    const SyncHandle handle = broadcast.BeginBucket(bucket);
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    if (rank() == 0) broadcast.SendAll();
    GS_RETURN_IF_ERROR(handle.Wait(deadline));
  }
  engine_->gather()->Store(bucket);
  return world_size() > 1 ? side_channel().Barrier(deadline) : absl::OkStatus();
}

std::shared_ptr<RingEngine> RingSync::EngineToEnd() {
  MutexLock lock(&mutex_);
  return engine_;
}

void RingSync::Halt(const absl::Status&) {
  if (const std::shared_ptr<RingEngine> engine = EngineToEnd()) engine->Halt();
}

void RingSync::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    if (peers_ != nullptr) peers_->Cancel(status);
  }
  if (const std::shared_ptr<RingEngine> engine = EngineToEnd()) engine->Fail(status);
}

void RingSync::Close() {
  std::unique_ptr<RingPeers> peers;
  {
    MutexLock lock(&mutex_);
    peers = std::move(peers_);
  }
  if (peers != nullptr) peers->Cancel(absl::CancelledError("destroyed"));
  tasks_.Stop();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRingGradientSync(const RingOptions& options) {
  if (options.connections < 1 || options.lead < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring: expected at least 1 connection and a lead of at least 1, found ",
                     options.connections, " and ", options.lead));
  }
  if (options.group.world_size > 1 && options.link == nullptr) {
    return absl::InvalidArgumentError("ring: expected a link with more than one rank");
  }
  return NewGroupSync(options.group, "ring",
                      [&](EngineHost& host) { return std::make_unique<RingSync>(host, options); });
}

}  // namespace gradsync
