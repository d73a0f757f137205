#include "core/links/tcp_frame_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/links/frames.h"

namespace gradsync {
namespace {

// What threads other than the reactor's write themselves: handing it over would take longer than
// writing it.
constexpr size_t kWrittenAtOnce = 32 << 10;

// Frames that wait go together, up to so many bytes and frames. More could not be overtaken.
constexpr size_t kTogetherBytes = 64 << 10;
constexpr size_t kTogetherFrames = 32;

// What is read before others have their turn.
constexpr size_t kReadAtOnce = 1 << 20;

// Before a stream is open, peers are strangers.
constexpr RecordReader::Limits kOpeningLimits = {4096, 0};

// What waits in the kernel and was not sent yet: urgent frames cannot overtake it.
constexpr int kUnsentBytes = 256 << 10;

constexpr size_t kMaxPayloadBytes = size_t{1} << 31;
constexpr size_t kMaxReasonBytes = 2048;

// How long a peer has to take in why we cancel; as over gRPC (core/links/grpc_frame_stream.cc).
constexpr absl::Duration kLinger = absl::Milliseconds(500);

void LimitUnsent(int descriptor) {
  setsockopt(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof(kUnsentBytes));
}

absl::Status Lost(const std::string& peer, absl::string_view how) {
  return absl::UnavailableError(absl::StrCat(peer, ": lost, or cancelled there: ", how));
}

std::string EndRecord(const absl::Status& reason) {
  const absl::Status cut(reason.code(), reason.message().substr(0, kMaxReasonBytes));
  std::string bytes;
  AppendRecord(TcpRecord::kEnd, FailedHeader(cut).error().SerializeAsString(), &bytes);
  return bytes;
}

}  // namespace

TcpFrameStream::TcpFrameStream(int descriptor, std::unique_ptr<TcpTransport> transport,
                               std::string peer, std::shared_ptr<TcpReactor> reactor,
                               std::shared_ptr<ReceiveMemory> memory, const TcpPatience& patience,
                               std::shared_ptr<FrameSink> sink)
    : descriptor_(descriptor),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      reactor_(std::move(reactor)),
      patience_(patience),
      reader_(std::move(memory), RecordReader::Limits()),
      sink_(std::move(sink)),
      opening_(Opening::kOpen),
      heard_(MonotonicTime::Now()),
      open_(true) {
  LimitUnsent(descriptor_);
}

TcpFrameStream::TcpFrameStream(int descriptor, std::string peer,
                               std::shared_ptr<TcpReactor> reactor,
                               std::shared_ptr<ReceiveMemory> memory, const TcpPatience& patience,
                               std::shared_ptr<TcpAcceptance> acceptance)
    : descriptor_(descriptor),
      transport_(NewPlainTransport(descriptor)),
      peer_(std::move(peer)),
      reactor_(std::move(reactor)),
      patience_(patience),
      acceptance_(std::move(acceptance)),
      reader_(std::move(memory), kOpeningLimits),
      opening_(acceptance_->tls != nullptr || acceptance_->others != nullptr
                   ? Opening::kUnknown
                   : Opening::kAwaitsOpening),
      heard_(MonotonicTime::Now()),
      open_by_(heard_ + patience.open_within),
      open_(false) {}

TcpFrameStream::~TcpFrameStream() {
  if (descriptor_ >= 0) close(descriptor_);
}

// Sending.

void TcpFrameStream::Send(OutgoingFrame frame) {
  if (frame.payload.size() >= kMaxPayloadBytes) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat(peer_, ": a payload of ", frame.payload.size(),
                                                " bytes; expected less than ", kMaxPayloadBytes));
    EndWith(status, status);
  }
  bool turn = false, hand_over = false;
  {
    MutexLock lock(&mutex_);
    if (!ended_ && !finish_requested_) {
      const bool small = frame.payload.size() <= kWrittenAtOnce;
      (frame.urgent ? urgent_ : normal_).push_back(std::move(frame));
      if (small || reactor_->IsCurrent()) {
        turn = TakeTurn();
      } else {
        hand_over = open_ && !writing_ && !full_;
      }
    }
  }
  frame.released.Run();  // if it was not queued
  if (turn) Write();
  if (hand_over) AskForAttention();
}

void TcpFrameStream::Finish() {
  bool turn;
  {
    MutexLock lock(&mutex_);
    finish_requested_ = true;
    turn = TakeTurn();
  }
  if (turn) Write();
}

void TcpFrameStream::Cancel(absl::Status reason) {
  if (reason.ok()) reason = absl::CancelledError("no reason given");
  EndWith(reason,
          absl::CancelledError(absl::StrCat(peer_, ": cancelled here: ", reason.message())));
}

void TcpFrameStream::OnSilence(absl::Status why) {
  const absl::Status named = Suspicion(Annotate(peer_, why), PatienceWith(why));
  EndWith(named, named);
}

void TcpFrameStream::EndWith(absl::Status to_peer, absl::Status to_sink) {
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    to_peer_ = std::move(to_peer);
    to_sink_ = std::move(to_sink);
    linger_ = MonotonicTime::Now() + kLinger;
    if (acceptance_ != nullptr) control_ += EndRecord(*to_peer_);
  }
  DropQueues();
  AskForAttention();
}

void TcpFrameStream::DropQueues() {
  Fifo<OutgoingFrame> urgent, normal;  // released without the mutex
  MutexLock lock(&mutex_);
  urgent.swap(urgent_);
  normal.swap(normal_);
}

bool TcpFrameStream::HasSomethingToWrite() const {
  if (!control_.empty()) return true;
  if (!open_) return false;
  return !urgent_.empty() || !normal_.empty() || (finish_requested_ && !finish_taken_ && !ended_);
}

bool TcpFrameStream::TakeTurn() {
  if (writing_ || full_ || broken_ || closed_ || !HasSomethingToWrite()) return false;
  writing_ = true;
  return true;
}

// Into batch_, which is empty. False if there is nothing, or nothing for this thread.
bool TcpFrameStream::FillBatch() {
  if (broken_ || !HasSomethingToWrite()) return false;
  if (control_.empty() && !reactor_->IsCurrent()) {
    const Fifo<OutgoingFrame>& next = urgent_.empty() ? normal_ : urgent_;
    if (!next.empty() && next[0].payload.size() > kWrittenAtOnce) return false;
  }
  batch_.control.swap(control_);
  control_.clear();
  if (!open_) return true;
  for (size_t bytes = 0; bytes < kTogetherBytes && batch_.frames.size() < kTogetherFrames;) {
    Fifo<OutgoingFrame>& queue = urgent_.empty() ? normal_ : urgent_;
    if (queue.empty()) break;
    const size_t next = queue.front().payload.size();
    if (!batch_.frames.empty() && bytes + next > kTogetherBytes) break;
    bytes += next;
    batch_.frames.push_back(queue.pop_front());
  }
  if (finish_requested_ && !finish_taken_ && !ended_ && urgent_.empty() && normal_.empty()) {
    finish_taken_ = true;
    batch_.finishes = true;
  }
  return true;
}

void TcpFrameStream::Batch::Encode() {
  heads.clear();
  ends.clear();
  pieces.clear();
  next_piece = 0;
  for (const OutgoingFrame& frame : frames) {
    const size_t header_bytes = frame.header.ByteSizeLong();
    AppendPrefix({TcpRecord::kFrame, static_cast<uint32_t>(header_bytes), frame.payload.size()},
                 &heads);
    const size_t at = heads.size();
    heads.resize(at + header_bytes);
    frame.header.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(&heads[at]));
    ends.push_back(heads.size());
  }
  if (finishes) AppendRecord(TcpRecord::kFinish, "", &heads);
  if (!control.empty()) pieces.push_back({&control[0], control.size()});
  size_t begin = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].payload.empty()) continue;  // its head goes with the next one's
    pieces.push_back({&heads[begin], ends[i] - begin});
    pieces.push_back({const_cast<char*>(frames[i].payload.data()), frames[i].payload.size()});
    begin = ends[i];
  }
  if (begin < heads.size()) pieces.push_back({&heads[begin], heads.size() - begin});
}

void TcpFrameStream::Batch::Advance(size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces[next_piece];
    const size_t of_piece = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + of_piece;
    piece.iov_len -= of_piece;
    bytes -= of_piece;
    if (piece.iov_len == 0) ++next_piece;
  }
}

void TcpFrameStream::Write() {
  bool attend = false;
  for (bool more = true; more;) {
    if (batch_.empty()) {
      {
        MutexLock lock(&mutex_);
        if (!FillBatch()) {
          writing_ = false;
          attend = attend || closed_ || to_peer_ || (!broken_ && HasSomethingToWrite());
          break;
        }
      }
      batch_.Encode();
    }
    const ssize_t written = transport_->Send(&batch_.pieces[batch_.next_piece],
                                             batch_.pieces.size() - batch_.next_piece);
    if (written >= 0) {
      batch_.Advance(static_cast<size_t>(written));
      if (!batch_.empty()) continue;
      const bool finished = batch_.finishes;
      batch_.frames.clear();  // and so released
      batch_.control.clear();
      batch_.finishes = false;
      if (!finished) continue;
      MutexLock lock(&mutex_);
      finish_written_ = true;
      attend = true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MutexLock lock(&mutex_);
      if (!std::exchange(drained_, false)) {
        full_ = true;
        writing_ = false;
        attend = attend || to_peer_;
        more = false;
      }
    } else if (errno != EINTR) {
      // Why is for the side that reads to find out; there may still be something to read.
      {
        MutexLock lock(&mutex_);
        broken_ = true;
        ended_ = true;
        writing_ = false;
      }
      attend = true;
      more = false;
    }
  }
  if (attend) AskForAttention();
}

// Receiving. On the reactor's thread.

bool TcpFrameStream::OnReady(bool readable, bool writable) {
  bool turn = false;
  if (writable) {
    MutexLock lock(&mutex_);
    if (writing_) {
      drained_ = true;
    } else if (full_ || HasSomethingToWrite() || !batch_.empty()) {
      full_ = false;
      turn = !broken_ && !closed_;
      writing_ = turn;
    }
  }
  if (turn) Write();
  // TLS may have waited to write before it could go on reading.
  const bool more = (readable || !transport_->EmptyWhenShort()) && Read();
  ConsiderEnd(MonotonicTime::Now());
  return more;
}

void TcpFrameStream::OnAttention() {
  bool turn, broken;
  {
    MutexLock lock(&mutex_);
    if (closed_) return;
    turn = TakeTurn();
    broken = broken_;
  }
  if (turn) Write();
  if (broken) {
    while (Read()) {
    }
  }
  ConsiderEnd(MonotonicTime::Now());
}

// Looks at the first bytes of a connection: they are another's, or announce TLS, or are for the
// reader. False if there is nothing for the reader yet.
bool TcpFrameStream::Sort() {
  char first[TcpRecord::kPrefixBytes];
  const ssize_t seen = recv(descriptor_, first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
  if (seen < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (seen <= 0) {
    ReadEnded(Lost(peer_, seen == 0 ? "the connection was closed" : std::strerror(errno)));
    return false;
  }
  const auto bytes = static_cast<size_t>(seen);
  const bool ours = first[0] == 'G' && (bytes < 2 || first[1] == 'S');
  if (ours && bytes < sizeof(first)) return false;
  if (!ours && acceptance_->others != nullptr) {
    GiveAway();
    return false;
  }
  opening_ = Opening::kAwaitsOpening;
  if (!ours || acceptance_->tls == nullptr) return true;
  const absl::StatusOr<TcpRecord> record = ReadPrefix(first);
  if (!record.ok() || record->type != TcpRecord::kTls || record->header_bytes > 0 ||
      record->payload_bytes > 0) {
    return true;
  }
  // It is there, as was seen.
  if (recv(descriptor_, first, sizeof(first), MSG_DONTWAIT) != seen) return false;
  transport_ = acceptance_->tls->Accepting(descriptor_);
  encrypted_ = true;
  return true;
}

void TcpFrameStream::GiveAway() {
  {
    MutexLock lock(&mutex_);
    if (ended_) return;  // the listener closes
    ended_ = true;
    closed_ = true;
  }
  const std::shared_ptr<TcpFrameStream> self = shared_from_this();
  reactor_->Remove(descriptor_);
  acceptance_->others(std::exchange(descriptor_, -1));
  acceptance_->registry.Remove();
}

bool TcpFrameStream::Read() {
  if (opening_ == Opening::kUnknown && !Sort()) return false;
  size_t read = 0;
  while (read < kReadAtOnce) {
    {
      MutexLock lock(&mutex_);
      if (read_ended_ || closed_) return false;
    }
    iovec places[2];
    const auto count = static_cast<size_t>(reader_.Places(places));
    size_t room = 0;
    for (size_t i = 0; i < count; ++i) room += places[i].iov_len;
    const ssize_t received = transport_->Receive(places, count);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) ReadEnded(Lost(peer_, transport_->Why(errno)));
      return false;
    }
    if (received == 0) {
      ReadEnded(Lost(peer_, "the connection was closed"));
      return false;
    }
    heard_ = MonotonicTime::Now();
    asked_.reset();
    read += static_cast<size_t>(received);
    {
      // What comes after the end that was decided here is for nobody.
      MutexLock lock(&mutex_);
      if (to_peer_) continue;
    }
    const absl::Status parsed =
        reader_.Received(static_cast<size_t>(received),
                         [this](TcpRecord::Type type, absl::string_view header, Payload payload) {
                           return TakeRecord(type, header, std::move(payload));
                         });
    if (!parsed.ok()) {
      Refuse(parsed);
      return true;
    }
    if (static_cast<size_t>(received) < room && transport_->EmptyWhenShort()) return false;
  }
  return true;
}

void TcpFrameStream::ReadEnded(absl::Status why) {
  MutexLock lock(&mutex_);
  if (!read_ended_) read_ended_ = std::move(why);
}

bool TcpFrameStream::TakeRecord(TcpRecord::Type type, absl::string_view header, Payload payload) {
  bool turn = false;
  absl::Status wrong;
  switch (type) {
    case TcpRecord::kFrame:
      if (opening_ == Opening::kOpen) return TakeFrame(header, std::move(payload));
      wrong = absl::DataLossError("a frame before the stream was opened");
      break;
    case TcpRecord::kFinish: {
      {
        MutexLock lock(&mutex_);
        if (to_peer_) return false;
        if (opening_ != Opening::kOpen || peer_finished_) {
          wrong = absl::DataLossError("an end that does not belong here");
          break;
        }
        peer_finished_ = true;
      }
      if (acceptance_ != nullptr) sink_->OnPeerFinished();
      return true;
    }
    case TcpRecord::kEnd: {
      proto::FrameHeader end;
      if (acceptance_ != nullptr ||
          !end.mutable_error()->ParseFromArray(header.data(), static_cast<int>(header.size()))) {
        wrong = absl::DataLossError("an end that is none of the peer's");
        break;
      }
      ReadEnded(Annotate(peer_, FailureIn(end)));
      return false;
    }
    case TcpRecord::kPing: {
      MutexLock lock(&mutex_);
      if (opening_ != Opening::kOpen) {
        wrong = absl::DataLossError("a question before the stream was opened");
        break;
      }
      // One answer is enough for all questions that came before it.
      if (control_.empty()) AppendRecord(TcpRecord::kPong, "", &control_);
      turn = TakeTurn();
      break;
    }
    case TcpRecord::kPong:
      break;
    case TcpRecord::kOpening:
      if (acceptance_ != nullptr && opening_ == Opening::kAwaitsOpening) {
        TakeOpening(header);
        return true;
      }
      wrong = absl::DataLossError("a stream that is opened twice");
      break;
    case TcpRecord::kProof:
      if (acceptance_ != nullptr && opening_ == Opening::kAwaitsProof) {
        TakeProof(header);
        return true;
      }
      wrong = absl::DataLossError("a proof that nobody asked for");
      break;
    case TcpRecord::kTls:
      wrong = acceptance_ != nullptr && acceptance_->tls == nullptr
                  ? absl::FailedPreconditionError(
                        "the caller encrypts (--tls_cert), the process that was called does not")
                  : absl::DataLossError("TLS that does not begin here");
      break;
    case TcpRecord::kChallenge:
    case TcpRecord::kAccepted:
      wrong = absl::DataLossError("an answer to an opening, on an open stream");
      break;
  }
  if (turn) Write();
  if (!wrong.ok()) Refuse(wrong);
  return wrong.ok();
}

bool TcpFrameStream::TakeFrame(absl::string_view header, Payload payload) {
  absl::Status wrong;
  {
    MutexLock lock(&mutex_);
    if (to_peer_) return false;
    if (peer_finished_) wrong = absl::DataLossError("a frame after the last one");
  }
  if (!header_.ParseFromArray(header.data(), static_cast<int>(header.size()))) {
    wrong = absl::DataLossError("a header that is no gradsync.proto.FrameHeader");
  }
  if (!wrong.ok()) {
    Refuse(wrong);
    return false;
  }
  sink_->OnFrame(header_, std::move(payload));
  MutexLock lock(&mutex_);
  return !to_peer_;
}

void TcpFrameStream::TakeOpening(absl::string_view header) {
  const absl::StatusOr<TcpOpening> opening = TcpOpening::Decode(header);
  if (!opening.ok()) return Refuse(opening.status());
  if (opening->oldest_version > TcpRecord::kVersion ||
      opening->newest_version < TcpRecord::kVersion) {
    return Refuse(absl::FailedPreconditionError(
        absl::StrCat("version of the TCP link: expected ", TcpRecord::kVersion, ", found ",
                     opening->oldest_version, " to ", opening->newest_version)));
  }
  if (acceptance_->tls != nullptr && !encrypted_) {
    return Refuse(absl::FailedPreconditionError(
        "the process that was called encrypts (--tls_cert), the caller does not"));
  }
  proof_ = opening->proof;
  if (!acceptance_->checker.asks()) {
    if (opening->has_secret) {
      return Refuse(absl::FailedPreconditionError(
          "the process that was called has no secret (--secret_file), the caller has one"));
    }
    return Accept();
  }
  if (!opening->has_secret) return Refuse(acceptance_->checker.Check(""));
  opening_ = Opening::kAwaitsProof;
  bool turn;
  {
    MutexLock lock(&mutex_);
    AppendRecord(TcpRecord::kChallenge, acceptance_->checker.NewChallenge(), &control_);
    turn = TakeTurn();
  }
  if (turn) Write();
}

void TcpFrameStream::TakeProof(absl::string_view header) {
  const absl::Status checked = acceptance_->checker.Check(header);
  if (!checked.ok()) return Refuse(checked);
  Accept();
}

void TcpFrameStream::Refuse(absl::Status why) { EndWith(why, Annotate(peer_, why)); }

void TcpFrameStream::Accept() {
  opening_ = Opening::kOpen;
  LimitUnsent(descriptor_);
  reader_.set_limits({RecordReader::Limits().header_bytes, acceptance_->max_payload_bytes});
  if (acceptance_->watch != nullptr) {
    acceptance_->watch->Add(absl::StrCat(peer_[0] == '[' ? "ipv6:" : "ipv4:", peer_),
                            weak_from_this());
  }
  sink_ = acceptance_->acceptor(shared_from_this());
  if (sink_ == nullptr) EndWith(absl::UnavailableError("the stream was refused"), absl::OkStatus());
  bool turn;
  {
    MutexLock lock(&mutex_);
    if (to_peer_) return;
    open_ = true;
    AppendRecord(TcpRecord::kAccepted, "", &control_);
    turn = TakeTurn();
  }
  if (turn) Write();
}

// Time and the end. On the reactor's thread.

void TcpFrameStream::OnTick(MonotonicTime now, absl::Duration late) {
  bool ask = false, silent = false, too_late = false;
  if (opening_ != Opening::kOpen) {
    open_by_ = open_by_ + late;
    too_late = now >= open_by_;
  } else if (asked_) {
    *asked_ = *asked_ + late;
    silent = now - *asked_ >= patience_.answer_within;
  } else {
    ask = now - heard_ >= patience_.ask_after;
  }
  if (too_late) {
    Refuse(absl::DeadlineExceededError(
        absl::StrCat("no stream was opened within ", absl::FormatDuration(patience_.open_within))));
  }
  if (silent) {
    const absl::Status why = absl::UnavailableError(
        absl::StrCat("has not answered for ", absl::FormatDuration(patience_.answer_within)));
    EndWith(why, Annotate(peer_, why));
  }
  if (ask) {
    asked_ = now;
    bool turn;
    {
      MutexLock lock(&mutex_);
      // Not behind the last word, after which the peer may be gone.
      if (open_ && !ended_ && !finish_taken_ && control_.empty()) {
        AppendRecord(TcpRecord::kPing, "", &control_);
      }
      turn = TakeTurn();
    }
    if (turn) Write();
  }
  ConsiderEnd(now);
}

bool TcpFrameStream::HasEnded(MonotonicTime now, absl::Status* status) {
  if (closed_) return false;
  if (to_peer_) {
    *status = to_sink_;
    // The accepting end waits until the peer has taken in why.
    if (acceptance_ == nullptr || read_ended_ || broken_ || now >= linger_) return true;
    if (control_.empty() && batch_.empty() && !writing_ && !shut_) {
      shut_ = true;
      shutdown(descriptor_, SHUT_WR);
    }
    return false;
  }
  if (finish_written_ && peer_finished_) return true;
  if (!read_ended_) return false;
  *status = *read_ended_;
  return true;
}

void TcpFrameStream::ConsiderEnd(MonotonicTime now) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (!HasEnded(now, &status)) return;
    ended_ = true;
    if (writing_) {  // it asks for attention when it is done
      broken_ = true;
      shutdown(descriptor_, SHUT_RDWR);
      return;
    }
    closed_ = true;
  }
  const std::shared_ptr<TcpFrameStream> self = shared_from_this();
  DropQueues();
  batch_ = Batch();
  reactor_->Remove(descriptor_);
  shutdown(descriptor_, SHUT_RDWR);
  const std::shared_ptr<FrameSink> sink = std::exchange(sink_, nullptr);
  if (sink != nullptr) sink->OnClosed(std::move(status));
  if (acceptance_ != nullptr) acceptance_->registry.Remove();
}

}  // namespace gradsync
