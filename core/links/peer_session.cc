#include "core/links/peer_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/errors.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// Of one stream, before its peer is known.
constexpr int kUnknown = -1;

std::string AddressKey(const PeerSessionOptions& options, int member) {
  return options.group.Key(absl::StrCat(options.kind, "/", member, "/address"));
}

OutgoingFrame HelloFrame(const proto::PeerHello& hello) {
  OutgoingFrame frame = FrameOf(FrameHeader::HELLO);
  SetPayload(hello.SerializeAsString(), &frame);
  return frame;
}

}  // namespace

// Hears one stream. The first frame must be HELLO: of a stream that was accepted, it says who opened
// it; otherwise it is the answer.
class PeerSession::Sink : public FrameSink {
 public:
  // Of a stream that was accepted.
  Sink(PeerSession* session, std::shared_ptr<FrameStream> stream)
      : session_(session), accepted_(true), stream_(std::move(stream)) {}

  // Of one that this rank opens.
  Sink(PeerSession* session, int peer, int connection)
      : session_(session), accepted_(false), peer_(peer), connection_(connection) {}

  void OnFrame(const FrameHeader& header, Payload payload) override {
    if (state_ == State::kRefused) return;
    if (state_ == State::kGreeted) {
      left_ |= header.kind() == FrameHeader::GOODBYE;
      return session_->OnFrame(peer_, header, std::move(payload));
    }
    const absl::Status status = Greet(header, payload);
    state_ = status.ok() ? State::kGreeted : State::kRefused;
    if (status.ok()) return;
    if (accepted_) return stream_->Cancel(status);
    session_->Lost(peer_, status);
  }

  // Said before the stream ends here, where the peer would take that for the loss of this rank.
  void OnPeerFinished() override {
    if (state_ != State::kGreeted || left_) return;
    session_->Lost(peer_, absl::UnavailableError("without goodbye"));
  }

  void OnClosed(absl::Status status) override {
    stream_.reset();
    if (accepted_ && state_ != State::kGreeted) return;
    if (!status.ok() || !left_) session_->Lost(peer_, status);
    session_->Closed();
  }

 private:
  enum class State { kNew, kGreeted, kRefused };

  absl::Status Greet(const FrameHeader& header, const Payload& payload) {
    if (header.kind() == FrameHeader::FAILED) return FailureIn(header);
    proto::PeerHello hello;
    if (header.kind() != FrameHeader::HELLO || !ParsePayload(payload, kMaxGreetingBytes, &hello)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected HELLO, found ", FrameHeader::Kind_Name(header.kind())));
    }
    return accepted_ ? session_->OnHello(hello, stream_, &peer_)
                     : session_->OnAnswer(peer_, connection_, hello);
  }

  PeerSession* const session_;
  const bool accepted_;
  std::shared_ptr<FrameStream> stream_;  // if it was accepted, until it is closed
  int peer_ = kUnknown;
  int connection_ = 0;
  State state_ = State::kNew;
  bool left_ = false;  // said so, in good order
};

PeerSession::PeerSession(PeerSessionOptions options)
    : options_(std::move(options)), peers_(options_.peers.size()) {
  for (Peer& peer : peers_) peer.streams.resize(options_.connections);
}

PeerSession::~PeerSession() { Close(); }

void PeerSession::Close() {
  Cancel(absl::CancelledError(absl::StrCat(OwnRank(), " left")));
  listener_.reset();
  MutexLock lock(&mutex_);
  while (open_ > 0) changed_.Wait(&mutex_);
}

std::string PeerSession::Name(int peer) const {
  MutexLock lock(&mutex_);
  return absl::StrCat(Rank(peer), " at ", peers_[peer].address);
}

absl::Status PeerSession::Connect(const std::string& fingerprint, Deadline deadline) {
  fingerprint_ = fingerprint;
  GS_RETURN_IF_ERROR(Listen(deadline));
  for (int peer = 0; peer < count(); ++peer) {
    if (!options_.peers[peer].opens) GS_RETURN_IF_ERROR(Open(peer, deadline));
  }
  return WaitForPeers(deadline);
}

absl::Status PeerSession::Listen(Deadline deadline) {
  bool any = false;
  for (const auto& peer : options_.peers) any |= peer.opens;
  if (!any) return absl::OkStatus();
  const WorkerGroup& group = options_.group;
  GS_ASSIGN_OR_RETURN(listener_, options_.link->Listen(absl::StrCat(group.address, ":0"),
                                                       [this](std::shared_ptr<FrameStream> stream) {
                                                         return Welcome(std::move(stream));
                                                       }));
  return group.store->Set(AddressKey(options_, group.rank), listener_->address(), deadline);
}

// Streams that do not show the job's key, if the job has one, are ended.
std::shared_ptr<FrameSink> PeerSession::Welcome(std::shared_ptr<FrameStream> stream) {
  const std::string& key = options_.group.key;
  if (!key.empty() && !SameSecret(stream->proof().key, key)) {
    stream->Cancel(absl::PermissionDeniedError(
        absl::StrCat(OwnRank(), " takes part in a job with another key")));
    return nullptr;
  }
  return std::make_shared<Sink>(this, std::move(stream));
}

absl::Status PeerSession::Open(int peer, Deadline deadline) {
  const absl::StatusOr<std::string> address =
      options_.group.store->Get(AddressKey(options_, options_.peers[peer].member), deadline);
  if (!address.ok()) {
    return Annotate(absl::StrCat("the address of ", Rank(peer)), address.status());
  }
  {
    MutexLock lock(&mutex_);
    peers_[peer].address = *address;
  }
  for (int connection = 0; connection < options_.connections; ++connection) {
    GS_RETURN_IF_ERROR(OpenStream(peer, connection, *address, deadline));
  }
  return absl::OkStatus();
}

absl::Status PeerSession::OpenStream(int peer, int connection, const std::string& address,
                                     Deadline deadline) {
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    ++open_;
  }
  const auto stream = ConnectToMember(*options_.link, address, connection,
                                      std::make_shared<Sink>(this, peer, connection), deadline,
                                      options_.group.failure_timeout);
  absl::Status failed;
  {
    MutexLock lock(&mutex_);
    if (stream.ok()) {
      peers_[peer].streams[connection] = *stream;
    } else {
      --open_;
    }
    failed = failed_;
  }
  if (!stream.ok()) {
    if (PatienceWith(stream.status()) > absl::ZeroDuration()) {
      return CutLink(OwnRank(), Rank(peer), stream.status());
    }
    return NoConnection(absl::StrCat(Rank(peer), " at ", address), stream.status());
  }
  if (!failed.ok()) {
    (*stream)->Cancel(failed);
    return failed;
  }
  proto::PeerHello hello;
  hello.set_rank(options_.group.RankOfJob(options_.group.rank));
  hello.set_connection(connection);
  hello.set_fingerprint(fingerprint_);
  hello.set_address(ListensAt());
  if (connection == 0 && options_.offer != nullptr) hello.set_offer(options_.offer(peer));
  (*stream)->Send(HelloFrame(hello));
  return absl::OkStatus();
}

absl::Status PeerSession::WaitForPeers(Deadline deadline) {
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  for (bool late = false;;) {
    if (!failed_.ok()) return failed_;
    int missing = 0;
    while (missing < count() && peers_[missing].greeted == options_.connections) ++missing;
    if (missing == count()) return absl::OkStatus();
    if (late && patience.Passed()) {
      const bool opens = options_.peers[missing].opens;
      return absl::DeadlineExceededError(
          absl::StrCat(Rank(missing), " at ", peers_[missing].address,
                       opens ? " has opened " : " has answered on ", peers_[missing].greeted,
                       " of ", options_.connections, " streams",
                       opens ? absl::StrCat(" to ", ListensAt(), " (", OwnRank(), ")") : ""));
    }
    late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
  }
}

absl::StatusOr<int> PeerSession::SenderOf(const proto::PeerHello& hello) const {
  std::vector<std::string> expected;
  for (int peer = 0; peer < count(); ++peer) {
    if (!options_.peers[peer].opens) continue;
    if (options_.group.RankOfJob(options_.peers[peer].member) == hello.rank()) return peer;
    expected.push_back(Rank(peer));
  }
  return absl::InvalidArgumentError(absl::StrCat("HELLO to ", OwnRank(), ": expected ",
                                                 absl::StrJoin(expected, " or "), ", found rank ",
                                                 hello.rank()));
}

absl::Status PeerSession::OnHello(const proto::PeerHello& hello,
                                  const std::shared_ptr<FrameStream>& stream, int* sender) {
  GS_ASSIGN_OR_RETURN(const int peer, SenderOf(hello));
  const std::string of = absl::StrCat("HELLO of ", Rank(peer), ": ");
  if (hello.fingerprint() != fingerprint_) {
    return absl::FailedPreconditionError(absl::StrCat(
        of, "expected ", options_.agreement, " ", fingerprint_, ", found ", hello.fingerprint()));
  }
  const int connection = hello.connection();
  if (connection < 0 || connection >= options_.connections) {
    return absl::InvalidArgumentError(absl::StrCat(of, "expected a connection below ",
                                                   options_.connections, ", found ", connection));
  }
  {
    MutexLock lock(&mutex_);
    if (closing_) return absl::CancelledError(absl::StrCat(OwnRank(), " is leaving"));
    Peer& state = peers_[peer];
    if (state.streams[connection] != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(of, "there is a stream already on connection ", connection));
    }
    state.streams[connection] = stream;
    if (!hello.address().empty()) state.address = hello.address();
  }
  proto::PeerHello answer;
  if (connection == 0 && options_.on_greeting != nullptr) {
    absl::StatusOr<std::string> offer = options_.on_greeting(peer, hello.offer());
    if (!offer.ok()) {
      MutexLock lock(&mutex_);
      peers_[peer].streams[connection] = nullptr;
      return offer.status();
    }
    answer.set_offer(*std::move(offer));
  }
  *sender = peer;
  {
    MutexLock lock(&mutex_);
    ++open_;
  }
  // Before Connect() can return, whose caller may send at once: HELLO comes first.
  stream->Send(HelloFrame(answer));
  MutexLock lock(&mutex_);
  ++peers_[peer].greeted;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status PeerSession::OnAnswer(int peer, int connection, const proto::PeerHello& hello) {
  if (connection == 0 && options_.on_greeting != nullptr) {
    GS_RETURN_IF_ERROR(options_.on_greeting(peer, hello.offer()).status());
  }
  MutexLock lock(&mutex_);
  ++peers_[peer].greeted;
  changed_.SignalAll();
  return absl::OkStatus();
}

void PeerSession::OnFrame(int peer, const FrameHeader& header, Payload payload) {
  if (header.kind() == FrameHeader::GOODBYE) return;
  if (header.kind() == FrameHeader::FAILED) return Lost(peer, FailureIn(header));
  const absl::Status status = options_.on_frame(peer, header, std::move(payload));
  if (status.ok()) return;
  options_.on_error(BeginsWithCulprit(status.message())
                        ? status
                        : Annotate(absl::StrCat("from ", Name(peer)), status));
}

void PeerSession::Send(int peer, int connection, OutgoingFrame frame) {
  std::shared_ptr<FrameStream> stream;
  {
    MutexLock lock(&mutex_);
    stream = peers_[peer].streams[connection];
  }
  if (stream != nullptr) stream->Send(std::move(frame));
}

std::vector<std::shared_ptr<FrameStream>> PeerSession::Streams() const {
  std::vector<std::shared_ptr<FrameStream>> streams;
  for (const Peer& peer : peers_) {
    for (const auto& stream : peer.streams) {
      if (stream != nullptr) streams.push_back(stream);
    }
  }
  return streams;
}

absl::Status PeerSession::Finish(Deadline deadline) {
  std::vector<std::shared_ptr<FrameStream>> streams;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    closing_ = true;
    streams = Streams();
  }
  for (const auto& stream : streams) {
    stream->Send(FrameOf(FrameHeader::GOODBYE));
    stream->Finish();
  }
  PatientDeadline patience(deadline);
  MutexLock lock(&mutex_);
  while (open_ > 0) {
    const bool late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
    if (!late || open_ == 0 || !patience.Passed()) continue;
    std::vector<std::string> names;
    for (int peer = 0; peer < count(); ++peer) {
      names.push_back(absl::StrCat(Rank(peer), " at ", peers_[peer].address));
    }
    return absl::DeadlineExceededError(
        absl::StrCat(open_, " streams with ", absl::StrJoin(names, " and "), " do not close"));
  }
  return absl::OkStatus();
}

void PeerSession::Cancel(const absl::Status& reason) {
  std::vector<std::shared_ptr<FrameStream>> streams;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    if (failed_.ok()) failed_ = reason;
    streams = Streams();
    changed_.SignalAll();
  }
  for (const auto& stream : streams) stream->Cancel(reason);
}

void PeerSession::Closed() {
  MutexLock lock(&mutex_);
  --open_;
  changed_.SignalAll();
}

void PeerSession::Lost(int peer, const absl::Status& status) {
  absl::Status lost;
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    lost =
        LostStream(OwnRank(), Rank(peer), peers_[peer].address,
                   options_.peers[peer].opens ? "the stream from it" : "the stream to it", status);
    if (failed_.ok()) failed_ = lost;
    changed_.SignalAll();
  }
  options_.on_error(std::move(lost));
}

}  // namespace gradsync
