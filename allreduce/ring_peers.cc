#include "allreduce/ring_peers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_tokens.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"
#include "core/plan/ring_schedule.h"
#include "proto/ring.pb.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

std::string AddressKey(const WorkerGroup& group, int rank) {
  return group.Key(absl::StrCat("ring/", rank, "/address"));
}

void SendHello(const proto::RingHello& hello, FrameStream& stream) {
  OutgoingFrame frame = FrameOf(FrameHeader::HELLO);
  SetPayload(hello.SerializeAsString(), &frame);
  stream.Send(std::move(frame));
}

}  // namespace

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

}  // namespace gradsync
