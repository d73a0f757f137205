#include "worker/pipeline/stage_link.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_identity.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// How long a rank that failed waits to learn what the group makes of it: GroupError publishes in at
// most two seconds.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(5);

// Above what a RingPlace takes.
constexpr size_t kMaxPlaceBytes = 128;

std::string AddressKey(const WorkerGroup& group, int stage) {
  return group.Key(absl::StrCat("stage/", stage, "/address"));
}

OutgoingFrame HelloFrame(const proto::StageHello& hello) {
  OutgoingFrame frame = FrameOf(FrameHeader::HELLO);
  SetPayload(hello.SerializeAsString(), &frame);
  return frame;
}

}  // namespace

// Hears one neighbour: the stage behind on the stream that this rank opened, the stage before on
// one that it accepted, where the first frame says who it is.
class StageLink::Sink : public FrameSink {
 public:
  // `stream`: the accepted one; null where this rank opens it.
  Sink(StageLink* link, Neighbour from, std::shared_ptr<FrameStream> stream)
      : link_(link), from_(from), stream_(std::move(stream)) {}

  void OnFrame(const FrameHeader& header, Payload payload) override {
    if (refused_) return;
    if (!greeted_) {
      const absl::Status status = link_->OnHello(from_, header, payload, stream_);
      greeted_ = status.ok();
      refused_ = !greeted_;
      if (refused_ && stream_ != nullptr) stream_->Cancel(status);
      if (refused_ && stream_ == nullptr) link_->Lost(from_, status);
      return;
    }
    link_->OnTensor(from_, header, payload);
  }

  // Said before the stream ends here, where the peer would take that for the loss of this rank.
  void OnPeerFinished() override {
    if (!greeted_ || link_->HasLeft(from_)) return;
    link_->Lost(from_, absl::UnavailableError("without goodbye"));
  }

  void OnClosed(absl::Status status) override {
    const bool accepted = stream_ != nullptr;
    stream_.reset();
    if (greeted_ || !accepted) link_->OnClosed(from_, status);
  }

 private:
  StageLink* const link_;
  const Neighbour from_;
  std::shared_ptr<FrameStream> stream_;
  bool greeted_ = false;
  bool refused_ = false;
};

StageLink::StageLink(WorkerGroup group, std::shared_ptr<StreamLink> link, Link tensors,
                     std::shared_ptr<Activity> activity)
    : group_(std::move(group)),
      link_(std::move(link)),
      tensors_(tensors),
      activity_(std::move(activity)) {
  for (Neighbour neighbour : {Neighbour::kBefore, Neighbour::kBehind}) {
    const int stage = group_.rank + (neighbour == Neighbour::kBefore ? -1 : 1);
    Peer& peer = peers_[Index(neighbour)];
    peer.exists = stage >= 0 && stage < group_.world_size;
    if (peer.exists) peer.rank = group_.RankOfJob(stage);
  }
  group_error_ =
      std::make_unique<GroupError>(group_, [this](const absl::Status& status) { Fail(status); });
}

StageLink::~StageLink() {
  Fail(absl::CancelledError(absl::StrCat("rank ", group_.RankOfJob(group_.rank), " left")));
  listener_.reset();
  {
    MutexLock lock(&mutex_);
    while (peers_[Index(Neighbour::kBehind)].open) changed_.Wait(&mutex_);
  }
  group_error_.reset();
}

std::string StageLink::NameOf(Neighbour neighbour) const {
  MutexLock lock(&mutex_);
  const Peer& peer = peers_[Index(neighbour)];
  return absl::StrCat("rank ", peer.rank, " at ", peer.address);
}

absl::Status StageLink::Connect(const std::string& fingerprint, Deadline deadline) {
  fingerprint_ = fingerprint;
  absl::Status status = OfferMemory();
  if (status.ok()) status = Listen(deadline);
  if (status.ok()) status = ConnectBehind(deadline);
  if (status.ok()) status = WaitForGreetings(deadline);
  return Agreed(status);
}

// This rank's error, or the group's where there was one before.
absl::Status StageLink::Agreed(const absl::Status& own) {
  if (own.ok()) return own;
  group_error_->Report(own);
  const absl::Status verdict = inbox_.WaitForFailure(Deadline::In(kVerdictTimeout));
  return verdict.ok() ? own : verdict;
}

// Makes a ring for each neighbour. Where one cannot be made, none is offered, or with kShm that is
// an error.
absl::Status StageLink::OfferMemory() {
  if (tensors_ == Link::kGrpc) return absl::OkStatus();
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status status = host.status();
  for (int i : {0, 1}) {
    {
      MutexLock lock(&mutex_);
      if (!peers_[i].exists) continue;
    }
    absl::StatusOr<std::unique_ptr<TensorRingWriter>> ring = TensorRingWriter::Create();
    if (!ring.ok()) {
      status.Update(ring.status());
      continue;
    }
    MutexLock lock(&memory_[i].mutex);
    memory_[i].to = *std::move(ring);
  }
  if (status.ok()) host_ = host->Key();
  return tensors_ == Link::kShm ? status : absl::OkStatus();
}

void StageLink::Offer(Neighbour to, proto::StageHello* hello) {
  if (host_.empty()) return;
  Memory& memory = memory_[Index(to)];
  MutexLock lock(&memory.mutex);
  hello->mutable_memory()->set_host(host_);
  hello->mutable_memory()->set_process(getpid());
  *hello->mutable_memory()->mutable_ring() = memory.to->Begin();
}

// Maps what the neighbour offers; nothing where that cannot be. Errors: FAILED_PRECONDITION where
// it must.
absl::StatusOr<absl::optional<TensorRingReader>> StageLink::Accept(
    Neighbour from, const proto::StageHello& hello) const {
  std::string why;
  if (host_.empty() || !hello.has_memory()) {
    why = "it offers none";
  } else if (hello.memory().host() != host_) {
    why = "it is on another host";
  } else {
    TensorRingReader reader(hello.memory().process());
    const auto mapped = reader.At(hello.memory().ring());
    if (mapped.ok()) return absl::make_optional(std::move(reader));
    why = std::string(mapped.status().message());
  }
  if (tensors_ != Link::kShm) return absl::optional<TensorRingReader>();
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(from), " shares no memory with ", OwnName(), ": ", why, "; use --pipeline_link=grpc"));
}

absl::Status StageLink::Listen(Deadline deadline) {
  {
    MutexLock lock(&mutex_);
    if (!peers_[Index(Neighbour::kBefore)].exists) return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(listener_, link_->Listen(absl::StrCat(group_.address, ":0"),
                                               [this](std::shared_ptr<FrameStream> stream) {
                                                 return Welcome(std::move(stream));
                                               }));
  return group_.store->Set(AddressKey(group_, group_.rank), listener_->address(), deadline);
}

std::shared_ptr<FrameSink> StageLink::Welcome(std::shared_ptr<FrameStream> stream) {
  if (!group_.key.empty() && !SameSecret(stream->proof().key, group_.key)) {
    stream->Cancel(absl::PermissionDeniedError(absl::StrCat(
        "rank ", group_.RankOfJob(group_.rank), " takes part in a job with another key")));
    return nullptr;
  }
  return std::make_shared<Sink>(this, Neighbour::kBefore, std::move(stream));
}

absl::Status StageLink::ConnectBehind(Deadline deadline) {
  int rank = 0;
  {
    MutexLock lock(&mutex_);
    Peer& peer = peers_[Index(Neighbour::kBehind)];
    if (!peer.exists) return absl::OkStatus();
    rank = peer.rank;
  }
  const absl::StatusOr<std::string> address =
      group_.store->Get(AddressKey(group_, group_.rank + 1), deadline);
  if (!address.ok()) return Annotate(absl::StrCat("the address of rank ", rank), address.status());
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    peers_[Index(Neighbour::kBehind)].address = *address;
    peers_[Index(Neighbour::kBehind)].open = true;
  }
  auto stream = ConnectToMember(*link_, *address, /*connection=*/0,
                                std::make_shared<Sink>(this, Neighbour::kBehind, nullptr), deadline,
                                group_.failure_timeout);
  absl::Status failed;
  {
    MutexLock lock(&mutex_);
    Peer& peer = peers_[Index(Neighbour::kBehind)];
    if (stream.ok()) {
      peer.stream = *stream;
    } else {
      peer.open = false;
    }
    failed = failed_;
  }
  if (!stream.ok()) {
    if (PatienceWith(stream.status()) > absl::ZeroDuration()) {
      return CutLink(OwnName(), absl::StrCat("rank ", rank), stream.status());
    }
    return NoConnection(absl::StrCat("rank ", rank, " at ", *address), stream.status());
  }
  if (!failed.ok()) {
    (*stream)->Cancel(failed);
    return failed;
  }
  proto::StageHello hello;
  hello.set_rank(group_.RankOfJob(group_.rank));
  hello.set_fingerprint(fingerprint_);
  if (listener_ != nullptr) hello.set_address(listener_->address());
  Offer(Neighbour::kBehind, &hello);
  (*stream)->Send(HelloFrame(hello));
  return absl::OkStatus();
}

absl::Status StageLink::WaitForGreetings(Deadline deadline) {
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  for (bool late = false;;) {
    if (!failed_.ok()) return failed_;
    const Peer* missing = nullptr;
    for (const Peer& peer : peers_) {
      if (peer.exists && !peer.greeted) missing = &peer;
    }
    if (missing == nullptr) return absl::OkStatus();
    if (late && patience.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", missing->rank, " at ",
                                                      missing->address, " has not greeted rank ",
                                                      group_.RankOfJob(group_.rank)));
    }
    late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
  }
}

absl::Status StageLink::CheckHello(const proto::StageHello& hello) {
  int rank = 0;
  {
    MutexLock lock(&mutex_);
    rank = peers_[Index(Neighbour::kBefore)].rank;
  }
  if (hello.rank() != rank) {
    return absl::InvalidArgumentError(absl::StrCat("HELLO to rank ", group_.RankOfJob(group_.rank),
                                                   ": expected rank ", rank, ", found rank ",
                                                   hello.rank()));
  }
  if (hello.fingerprint() != fingerprint_) {
    return absl::FailedPreconditionError(absl::StrCat("HELLO of rank ", rank, ": expected stages ",
                                                      fingerprint_, ", found ",
                                                      hello.fingerprint()));
  }
  MutexLock lock(&mutex_);
  if (!hello.address().empty()) peers_[Index(Neighbour::kBefore)].address = hello.address();
  return absl::OkStatus();
}

// The stage before says who it is and is answered; the stage behind answers.
absl::Status StageLink::OnHello(Neighbour from, const FrameHeader& header, const Payload& payload,
                                const std::shared_ptr<FrameStream>& stream) {
  if (header.kind() == FrameHeader::FAILED) return FailureIn(header);
  proto::StageHello hello;
  if (header.kind() != FrameHeader::HELLO || !ParsePayload(payload, kMaxGreetingBytes, &hello)) {
    return absl::InvalidArgumentError(absl::StrCat("expected HELLO of ", NameOf(from), ", found ",
                                                   FrameHeader::Kind_Name(header.kind())));
  }
  if (from == Neighbour::kBefore) GS_RETURN_IF_ERROR(CheckHello(hello));
  GS_ASSIGN_OR_RETURN(absl::optional<TensorRingReader> memory, Accept(from, hello));
  const bool shares = memory.has_value();
  {
    MutexLock lock(&mutex_);
    Peer& peer = peers_[Index(from)];
    if (closing_ || !failed_.ok()) {
      return absl::CancelledError(
          absl::StrCat("rank ", group_.RankOfJob(group_.rank), " is leaving"));
    }
    if (peer.greeted) {
      return absl::InvalidArgumentError(
          absl::StrCat("HELLO of rank ", peer.rank, ": there is a stream already"));
    }
    peer.greeted = true;
    peer.open = true;
    memory_[Index(from)].from = std::move(memory);
    // The stage before may not be able to map this rank's memory. It can when it uses its own.
    peer.shares = shares && from == Neighbour::kBehind;
    if (stream != nullptr) peer.stream = stream;
    changed_.SignalAll();
  }
  if (stream == nullptr) return absl::OkStatus();
  proto::StageHello answer;
  if (shares) Offer(from, &answer);
  stream->Send(HelloFrame(answer));
  return absl::OkStatus();
}

void StageLink::Send(Neighbour to, const TensorKey& key, const at::Tensor& tensor) {
  std::shared_ptr<FrameStream> stream;
  bool shares = false;
  OutgoingFrame frame = TensorFrame(key, tensor);
  {
    MutexLock lock(&mutex_);
    stream = peers_[Index(to)].stream;
    shares = peers_[Index(to)].shares;
    bytes_sent_ += static_cast<int64_t>(frame.payload.size());
  }
  if (stream == nullptr) return;
  if (!shares) return stream->Send(std::move(frame));
  Memory& memory = memory_[Index(to)];
  MutexLock lock(&memory.mutex);
  if (const auto place = memory.to->Put(frame.payload)) {
    frame.header.set_kind(FrameHeader::WINDOWS);
    SetPayload(place->SerializeAsString(), &frame);
  }
  stream->Send(std::move(frame));
}

absl::StatusOr<at::Tensor> StageLink::Receive(Neighbour from, const TensorKey& key,
                                              Deadline deadline) {
  const Activity::Wait wait(activity_.get());
  absl::StatusOr<at::Tensor> tensor = inbox_.Take(from, key, deadline);
  if (tensor.ok() || !absl::IsDeadlineExceeded(tensor.status())) return tensor;
  return Agreed(Annotate(absl::StrCat("from ", NameOf(from)), tensor.status()));
}

absl::StatusOr<StageLink::Neighbour> StageLink::AwaitEither(const TensorKey& from_before,
                                                            const TensorKey& from_behind,
                                                            Deadline deadline) {
  const Activity::Wait wait(activity_.get());
  absl::StatusOr<Neighbour> from = inbox_.AwaitEither(from_before, from_behind, deadline);
  if (from.ok() || !absl::IsDeadlineExceeded(from.status())) return from;
  return Agreed(Annotate(
      absl::StrCat("from ", NameOf(Neighbour::kBehind), " and ", NameOf(Neighbour::kBefore)),
      from.status()));
}

void StageLink::OnTensor(Neighbour from, const FrameHeader& header, const Payload& payload) {
  if (header.kind() == FrameHeader::FAILED) return Lost(from, FailureIn(header));
  if (header.kind() == FrameHeader::GOODBYE) {
    MutexLock lock(&mutex_);
    peers_[Index(from)].left = true;
    return;
  }
  const absl::Status status = header.kind() == FrameHeader::WINDOWS
                                  ? KeepFromMemory(from, header, payload)
                                  : Keep(from, header, payload);
  if (status.ok()) return;
  group_error_->Report(BeginsWithCulprit(status.message())
                           ? status
                           : Annotate(absl::StrCat("from ", NameOf(from)), status));
}

// What lies in memory is copied at once: the ring has few places, and memory that a step keeps is
// counted where it is allocated.
absl::Status StageLink::KeepFromMemory(Neighbour from, FrameHeader header, const Payload& payload) {
  absl::optional<TensorRingReader>& memory = memory_[Index(from)].from;
  proto::RingPlace place;
  if (!memory.has_value() || !ParsePayload(payload, kMaxPlaceBytes, &place)) {
    return absl::InvalidArgumentError("expected TENSOR, or WINDOWS with a place, found WINDOWS");
  }
  const absl::StatusOr<absl::Span<const char>> elements = memory->At(place);
  if (absl::IsUnavailable(elements.status())) {
    return absl::UnavailableError(
        absl::StrCat(NameOf(from), " lost: ", elements.status().message()));
  }
  GS_RETURN_IF_ERROR(elements.status());
  {
    MutexLock lock(&mutex_);
    peers_[Index(from)].shares = true;
  }
  header.set_kind(FrameHeader::TENSOR);
  GS_RETURN_IF_ERROR(Keep(from, header, MakePayload({*elements}, nullptr)));
  memory->Release(place);
  return absl::OkStatus();
}

absl::Status StageLink::Keep(Neighbour from, const FrameHeader& header, const Payload& payload) {
  GS_ASSIGN_OR_RETURN(const TensorKey key, KeyIn(header));
  GS_ASSIGN_OR_RETURN(at::Tensor tensor, TensorIn(header, payload));
  {
    MutexLock lock(&mutex_);
    bytes_received_ += static_cast<int64_t>(payload.size());
  }
  return inbox_.Put(from, key, std::move(tensor));
}

absl::Status StageLink::Finish(Deadline deadline) {
  std::shared_ptr<FrameStream> streams[2];
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    closing_ = true;
    for (int i : {0, 1}) streams[i] = peers_[i].stream;
  }
  group_error_->Leave();
  for (const auto& stream : streams) {
    if (stream == nullptr) continue;
    stream->Send(FrameOf(FrameHeader::GOODBYE));
    stream->Finish();
  }
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  for (bool late = false;;) {
    const Peer* open = nullptr;
    for (const Peer& peer : peers_) {
      if (peer.open) open = &peer;
    }
    if (open == nullptr) return absl::OkStatus();
    if (late && patience.Passed()) {
      return absl::DeadlineExceededError(absl::StrCat("the stream with rank ", open->rank, " at ",
                                                      open->address, " does not close"));
    }
    late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
  }
}

std::string StageLink::OwnName() const {
  return absl::StrCat("rank ", group_.RankOfJob(group_.rank));
}

void StageLink::OnClosed(Neighbour from, const absl::Status& status) {
  Lost(from, status);
  MutexLock lock(&mutex_);
  peers_[Index(from)].open = false;
  changed_.SignalAll();
}

void StageLink::Lost(Neighbour neighbour, const absl::Status& status) {
  absl::Status lost;
  {
    MutexLock lock(&mutex_);
    const Peer& peer = peers_[Index(neighbour)];
    if (closing_ || !failed_.ok() || (status.ok() && peer.left)) return;
    lost = LostStream(OwnName(), absl::StrCat("rank ", peer.rank), peer.address,
                      "the stream with it", status);
  }
  group_error_->Report(std::move(lost));
}

// Of the whole job, or because this object goes away.
void StageLink::Fail(const absl::Status& status) {
  std::shared_ptr<FrameStream> streams[2];
  {
    MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = status;
    closing_ = true;
    for (int i : {0, 1}) streams[i] = peers_[i].stream;
    changed_.SignalAll();
  }
  inbox_.Fail(status);
  for (const auto& stream : streams) {
    if (stream != nullptr) stream->Cancel(status);
  }
}

bool StageLink::Has(Neighbour neighbour) const {
  MutexLock lock(&mutex_);
  return peers_[Index(neighbour)].exists;
}

bool StageLink::HasLeft(Neighbour neighbour) const {
  MutexLock lock(&mutex_);
  return peers_[Index(neighbour)].left;
}

bool StageLink::SharesMemory(Neighbour neighbour) const {
  MutexLock lock(&mutex_);
  return peers_[Index(neighbour)].shares;
}

int64_t StageLink::bytes_sent() const {
  MutexLock lock(&mutex_);
  return bytes_sent_;
}

int64_t StageLink::bytes_received() const {
  MutexLock lock(&mutex_);
  return bytes_received_;
}

}  // namespace gradsync
