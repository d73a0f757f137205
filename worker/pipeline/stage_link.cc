#include "worker/pipeline/stage_link.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// How long a rank that failed waits to learn what the group makes of it: GroupError publishes in at
// most two seconds.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(5);

// Above what a RingPlace takes.
constexpr size_t kMaxPlaceBytes = 128;

}  // namespace

StageLink::StageLink(WorkerGroup group, std::shared_ptr<StreamLink> link, Link tensors,
                     std::shared_ptr<Activity> activity)
    : group_(std::move(group)), tensors_(tensors), activity_(std::move(activity)) {
  PeerSessionOptions options;
  options.group = group_;
  options.link = std::move(link);
  options.kind = "stage";
  options.agreement = "stages";
  for (Neighbour neighbour : {Neighbour::kBefore, Neighbour::kBehind}) {
    const bool opens = neighbour == Neighbour::kBefore;
    const int stage = group_.rank + (opens ? -1 : 1);
    if (stage < 0 || stage >= group_.world_size) continue;
    peer_[Index(neighbour)] = static_cast<int>(neighbours_.size());
    neighbours_.push_back(neighbour);
    options.peers.push_back({stage, opens});
  }
  options.offer = [this](int peer) { return Offer(neighbours_[peer]); };
  options.on_greeting = [this](int peer, const std::string& offer) {
    return OnGreeting(neighbours_[peer], offer);
  };
  options.on_frame = [this](int peer, const FrameHeader& header, const Payload& payload) {
    return OnFrame(neighbours_[peer], header, payload);
  };
  options.on_error = [this](absl::Status status) { group_error_->Report(std::move(status)); };
  session_ = std::make_unique<PeerSession>(std::move(options));
  group_error_ =
      std::make_unique<GroupError>(group_, [this](const absl::Status& status) { Fail(status); });
}

StageLink::~StageLink() {
  inbox_.Fail(absl::CancelledError(absl::StrCat(group_.Name(group_.rank), " left")));
  session_->Close();
  group_error_.reset();
}

absl::Status StageLink::Connect(const std::string& fingerprint, Deadline deadline) {
  absl::Status status = OfferMemory();
  if (status.ok()) status = session_->Connect(fingerprint, deadline);
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
  if (tensors_ == Link::kGrpc || tensors_ == Link::kTcp) return absl::OkStatus();
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  absl::Status status = host.status();
  for (int i : {0, 1}) {
    if (peer_[i] < 0) continue;
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

std::string StageLink::Offer(Neighbour to) {
  if (host_.empty()) return "";
  proto::StageMemory offered;
  Memory& memory = memory_[Index(to)];
  MutexLock lock(&memory.mutex);
  offered.set_host(host_);
  offered.set_process(getpid());
  *offered.mutable_ring() = memory.to->Begin();
  return offered.SerializeAsString();
}

// Maps what the neighbour offers; nothing where that cannot be. Errors: FAILED_PRECONDITION where
// it must.
absl::StatusOr<absl::optional<TensorRingReader>> StageLink::Accept(
    Neighbour from, const proto::StageMemory& offered) const {
  std::string why;
  if (host_.empty() || offered.host().empty()) {
    why = "it offers none";
  } else if (offered.host() != host_) {
    why = "it is on another host";
  } else {
    TensorRingReader reader(offered.process());
    const auto mapped = reader.At(offered.ring());
    if (mapped.ok()) return absl::make_optional(std::move(reader));
    why = std::string(mapped.status().message());
  }
  if (tensors_ != Link::kShm) return absl::optional<TensorRingReader>();
  return absl::FailedPreconditionError(absl::StrCat(NameOf(from), " shares no memory with ",
                                                    group_.Name(group_.rank), ": ", why,
                                                    "; use --pipeline_link=grpc or tcp"));
}

absl::StatusOr<std::string> StageLink::OnGreeting(Neighbour from, const std::string& offer) {
  proto::StageMemory offered;
  if (!offered.ParseFromString(offer)) {
    return absl::InvalidArgumentError("HELLO: expected memory of a stage, found something else");
  }
  GS_ASSIGN_OR_RETURN(absl::optional<TensorRingReader> memory, Accept(from, offered));
  const bool shares = memory.has_value();
  memory_[Index(from)].from = std::move(memory);
  {
    MutexLock lock(&mutex_);
    // The stage before may not be able to map this rank's memory. It can when it uses its own.
    shares_[Index(from)] = shares && from == Neighbour::kBehind;
  }
  return shares ? Offer(from) : "";
}

void StageLink::Send(Neighbour to, const TensorKey& key, const at::Tensor& tensor) {
  if (!Has(to)) return;
  bool shares = false;
  OutgoingFrame frame = TensorFrame(key, tensor);
  {
    MutexLock lock(&mutex_);
    shares = shares_[Index(to)];
    bytes_sent_ += static_cast<int64_t>(frame.payload.size());
  }
  const int peer = peer_[Index(to)];
  if (!shares) return session_->Send(peer, /*connection=*/0, std::move(frame));
  Memory& memory = memory_[Index(to)];
  MutexLock lock(&memory.mutex);
  if (const auto place = memory.to->Put(frame.payload)) {
    frame.header.set_kind(FrameHeader::WINDOWS);
    SetPayload(place->SerializeAsString(), &frame);
  }
  session_->Send(peer, /*connection=*/0, std::move(frame));
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

absl::Status StageLink::OnFrame(Neighbour from, const FrameHeader& header, const Payload& payload) {
  return header.kind() == FrameHeader::WINDOWS ? KeepFromMemory(from, header, payload)
                                               : Keep(from, header, payload);
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
    shares_[Index(from)] = true;
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
  GS_RETURN_IF_ERROR(status());
  group_error_->Leave();
  return session_->Finish(deadline);
}

// Of the whole job.
void StageLink::Fail(const absl::Status& status) {
  inbox_.Fail(status);
  session_->Cancel(status);
}

bool StageLink::SharesMemory(Neighbour neighbour) const {
  MutexLock lock(&mutex_);
  return shares_[Index(neighbour)];
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
