#include "core/collectives/stream_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

constexpr size_t kPieceBytes = size_t{256} << 10;

// What all others together are sent at once: it costs about as much time as one more message.
constexpr size_t kSmallBytes = size_t{64} << 10;

// For a link to let go of frames once its streams are cancelled.
constexpr absl::Duration kSettling = absl::Seconds(10);

OutgoingFrame FrameFor(const CollectiveCall& call) {
  OutgoingFrame frame;
  frame.header.set_kind(FrameHeader::COLLECTIVE);
  proto::CollectiveCall& what = *frame.header.mutable_call();
  what.set_number(call.number);
  what.set_count(call.count);
  what.set_root(call.root);
  what.set_what(call.what);
  what.set_element(static_cast<uint32_t>(call.kind));
  what.set_op(static_cast<uint32_t>(call.op));
  what.set_hello(call.hello);
  return frame;
}

absl::StatusOr<CollectiveCall> CallIn(const FrameHeader& header) {
  const proto::CollectiveCall& what = header.call();
  if (header.kind() != FrameHeader::COLLECTIVE || what.what() > CollectiveCall::kSend ||
      what.element() >= kElementKinds || what.op() >= kFoldOps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected COLLECTIVE with a call, found ", FrameHeader::Kind_Name(header.kind()),
        " with call ", what.what(), " of ", what.element(), " and ", what.op()));
  }
  CollectiveCall call;
  call.number = what.number();
  call.count = what.count();
  call.root = what.root();
  call.what = static_cast<CollectiveCall::What>(what.what());
  call.kind = static_cast<ElementKind>(what.element());
  call.op = static_cast<FoldOp>(what.op());
  call.hello = what.hello();
  return call;
}

}  // namespace

StreamTransport::StreamTransport(StreamTransportOptions options)
    : options_(std::move(options)),
      driver_(options_.link->driver()),
      piece_(options_.piece_bytes == 0 ? kPieceBytes : options_.piece_bytes),
      small_(std::min(options_.small_bytes != 0 ? options_.small_bytes
                                                : kSmallBytes / static_cast<size_t>(n() - 1),
                      piece_)) {
  for (auto& inboxes : inboxes_) inboxes.resize(n());
  session_ = std::make_unique<PeerSession>(SessionOptions());
}

// Of each pair the rank with the higher number opens the stream.
PeerSessionOptions StreamTransport::SessionOptions() {
  PeerSessionOptions options;
  options.group = options_.group;
  options.link = options_.link;
  for (int peer = 0; peer + 1 < n(); ++peer) {
    options.peers.push_back({RankOf(peer), /*opens=*/RankOf(peer) > self()});
  }
  options.kind = "collectives";
  options.agreement = "collectives";
  options.on_frame = [this](int peer, const FrameHeader& header, Payload payload) {
    return OnFrame(RankOf(peer), header, std::move(payload));
  };
  options.on_error = options_.on_error;
  return options;
}

absl::Status StreamTransport::Connect(SideChannel&, Deadline deadline) {
  return session_->Connect(absl::StrCat(options_.terms, ", pieces of ", piece_, " bytes"),
                           deadline);
}

absl::Status StreamTransport::OnFrame(int from, const FrameHeader& header, Payload payload) {
  GS_ASSIGN_OR_RETURN(const CollectiveCall call, CallIn(header));
  Arrived arrived;
  arrived.message.call = call;
  arrived.message.parts = payload.parts;
  arrived.payload = std::move(payload);
  MutexLock lock(&mutex_);
  if (!failed_.ok()) return absl::OkStatus();  // too late
  inboxes_[call.what == CollectiveCall::kSend ? kMail : kCollectives][from].push_back(
      std::move(arrived));
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<char*> StreamTransport::Reserve(CallLane, size_t) {
  reserved_ = std::shared_ptr<char>(
      static_cast<char*>(pool_->Take(piece_)),
      [pool = pool_, bytes = piece_](char* block) { pool->Put(block, bytes); });
  return reserved_.get();
}

void StreamTransport::Post(CallLane, int to, const CollectiveCall& call, size_t bytes) {
  const std::shared_ptr<char> block = std::move(reserved_);
  SendFrames(to, call, absl::MakeConstSpan(block.get(), bytes),
             [&block] { return gradsync::Release([block] {}); });
}

absl::Status StreamTransport::Send(CallLane, int to, const CollectiveCall& call,
                                   absl::Span<const char> bytes) {
  SendFrames(to, call, bytes, [this] {
    MutexLock lock(&loans_->mutex);
    ++loans_->out;
    return gradsync::Release([loans = loans_] {
      MutexLock lock(&loans->mutex);
      --loans->out;
      loans->changed.SignalAll();
    });
  });
  return absl::OkStatus();
}

// Each rank begins with the next one, so that not all send to the same at once.
void StreamTransport::SendFrames(int to, const CollectiveCall& call, absl::Span<const char> bytes,
                                 const std::function<gradsync::Release()>& release) {
  for (int i = 1; i < n(); ++i) {
    const int rank = (self() + i) % n();
    if (to != kAllOthers && rank != to) continue;
    OutgoingFrame frame = FrameFor(call);
    frame.payload = bytes;
    if (!bytes.empty()) frame.released = release();
    session_->Send(PeerOf(rank), /*connection=*/0, std::move(frame));
  }
}

absl::StatusOr<const CallMessage*> StreamTransport::Receive(CallLane lane, int from) {
  std::deque<Arrived>& inbox = inboxes_[lane][from];
  const auto has_come = [&] {
    MutexLock lock(&mutex_);
    return !failed_.ok() || !inbox.empty();
  };
  while (true) {
    if (driver_ != nullptr && !has_come()) driver_->Drive(has_come, patience_->next_look());
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    if (!inbox.empty()) return &inbox.front().message;
    changed_.WaitWithDeadline(&mutex_, patience_->next_look());
    if (inbox.empty() && failed_.ok() && patience_->Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "expected a message from ", session_->Name(PeerOf(from)), ", found none in time"));
    }
  }
}

void StreamTransport::Release(CallLane lane, int from) {
  Payload payload;  // goes when the lock is not held
  MutexLock lock(&mutex_);
  payload = std::move(inboxes_[lane][from].front().payload);
  inboxes_[lane][from].pop_front();
}

absl::Status StreamTransport::Flush() {
  const auto all_back = [this] {
    MutexLock lock(&loans_->mutex);
    return loans_->out == 0;
  };
  if (driver_ != nullptr && !all_back()) driver_->Drive(all_back, patience_->next_look());
  MutexLock lock(&loans_->mutex);
  while (loans_->out > 0) {
    loans_->changed.WaitWithDeadline(&loans_->mutex, patience_->next_look());
    if (loans_->out > 0 && patience_->Passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("expected all messages to leave, found ", loans_->out, " that did not"));
    }
  }
  return absl::OkStatus();
}

void StreamTransport::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = status;
    changed_.SignalAll();
  }
  session_->Cancel(status);
}

// What came and nobody will take may be lent by ranks that wait for it, too.
void StreamTransport::Settle() {
  std::vector<std::deque<Arrived>> dropped;  // go when the lock is not held
  {
    MutexLock lock(&mutex_);
    for (auto& inboxes : inboxes_) {
      for (std::deque<Arrived>& inbox : inboxes) dropped.push_back(std::move(inbox));
      inboxes = std::vector<std::deque<Arrived>>(n());
    }
  }
  dropped.clear();
  const Deadline deadline = Deadline::In(kSettling);
  MutexLock lock(&loans_->mutex);
  while (loans_->out > 0 && !loans_->changed.WaitWithDeadline(&loans_->mutex, deadline)) {
  }
}

}  // namespace gradsync
