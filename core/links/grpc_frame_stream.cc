#include "core/links/grpc_frame_stream.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/fifo.h"
#include "core/base/grpc_conversions.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/links/frame_codec.h"
#include "core/links/frame_stream.h"
#include "core/links/grpc_challenge.h"
#include "core/links/silence_watch.h"
#include "grpc/grpc.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace gradsync {
namespace {

// The path of the one method that carries streams.
constexpr char kExchangeMethod[] = "/gradsync.proto.FrameLink/Exchange";

// Metadata of a call, with which it proves where it belongs (StreamProof). A run's id may be any
// bytes, which gRPC allows under names with this ending.
constexpr char kRunMetadata[] = "gradsync-run-bin";
constexpr char kKeyMetadata[] = "gradsync-key";

// What the two ends of a gRPC stream have in common: the queue of frames, which go several in one
// message where that is quick (MessageBudget), reading, and the order in which a call ends.
//
// gRPC asks much of those who use its callback API: one write at a time, no operation after
// Finish() or after the last hold is gone, one Finish() exactly. All operations but reads go
// through Pump(), which lets one thread at a time ask "what next?" under the mutex and do it
// without the mutex. Reads are started from reactions only.
//
// Thread-safe. Derived classes hold a reference to themselves from the start of the call until
// Close() has run.
class GrpcFrameStream : public FrameStream, public SilenceWatch::Watched {
 public:
  void Send(OutgoingFrame frame) final;
  void Finish() final;
  void Cancel(absl::Status reason) final;
  void OnSilence(absl::Status why) final;

 protected:
  using Action = std::function<void()>;

  // `peer` names the other side in messages.
  explicit GrpcFrameStream(std::string peer) : peer_(std::move(peer)) {}

  void SetSink(std::shared_ptr<FrameSink> sink);

  // Hands the frames in `read_buffer_` to the sink. False when no further message is wanted.
  bool Deliver();
  // Tells the sink that no message will come any more.
  void DeliverEnd();
  void WriteDone();
  // No frame is sent from now on; queued ones are released. For streams that are lost or complete.
  void End();
  // Likewise, decided here: `to_peer` is why, `to_sink` what OnClosed() says. The first call of
  // either counts.
  void EndWith(absl::Status to_peer, absl::Status to_sink);
  // The call is over: the last word to the sink.
  void Close(absl::Status status);
  // Does what is to be done next, unless another thread is at it; then that thread does.
  void Pump();

  // Starts the write of `write_buffer_`, which stays until WriteDone().
  virtual void StartWriting(const grpc::ByteBuffer* message) = 0;
  // The next step towards the end of the call, if one is due.
  virtual Action NextEndAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // The step after Finish(), when all frames are written.
  virtual Action NextFinishAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  const std::string peer_;
  grpc::ByteBuffer read_buffer_;  // of the one read under way

  mutable Mutex mutex_;
  CondVar changed_;
  bool finish_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Of an end that was decided here.
  absl::optional<absl::Status> to_peer_ ABSL_GUARDED_BY(mutex_);
  absl::Status to_sink_ ABSL_GUARDED_BY(mutex_);

 private:
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those that wait and go in the next message.
  void TakeFrames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FrameDecoder decoder_;
  std::shared_ptr<FrameSink> sink_ ABSL_GUARDED_BY(mutex_);
  Fifo<OutgoingFrame> urgent_ ABSL_GUARDED_BY(mutex_);
  Fifo<OutgoingFrame> normal_ ABSL_GUARDED_BY(mutex_);
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_done_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the write under way; only the pumping thread touches them.
  std::vector<OutgoingFrame> outgoing_;
  grpc::ByteBuffer write_buffer_;
  MonotonicTime write_begin_;
  MessageBudget budget_;
};

void GrpcFrameStream::Send(OutgoingFrame frame) {
  if (frame.payload.size() >= kMaxPayloadBytes) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat(peer_, ": a payload of ", frame.payload.size(),
                                                " bytes; expected less than ", kMaxPayloadBytes));
    EndWith(status, status);
  }
  {
    MutexLock lock(&mutex_);
    if (!ended_ && !finish_requested_) {
      (frame.urgent ? urgent_ : normal_).push_back(std::move(frame));
    }
  }
  frame.released.Run();  // if it was not queued
  Pump();
}

void GrpcFrameStream::Finish() {
  {
    MutexLock lock(&mutex_);
    finish_requested_ = true;
  }
  Pump();
}

void GrpcFrameStream::Cancel(absl::Status reason) {
  if (reason.ok()) reason = absl::CancelledError("no reason given");
  EndWith(reason,
          absl::CancelledError(absl::StrCat(peer_, ": cancelled here: ", reason.message())));
  Pump();
}

void GrpcFrameStream::OnSilence(absl::Status why) {
  const absl::Status named = Suspicion(
      absl::Status(why.code(), absl::StrCat(peer_, ": ", why.message())), PatienceWith(why));
  EndWith(named, named);
  Pump();
}

void GrpcFrameStream::SetSink(std::shared_ptr<FrameSink> sink) {
  MutexLock lock(&mutex_);
  sink_ = std::move(sink);
}

bool GrpcFrameStream::Deliver() {
  std::shared_ptr<FrameSink> sink;
  {
    MutexLock lock(&mutex_);
    if (to_peer_) return false;
    sink = sink_;
  }
  bool wanted = true;
  const absl::Status decoded =
      decoder_.Decode(&read_buffer_, [&](const proto::FrameHeader& header, Payload payload) {
        sink->OnFrame(header, std::move(payload));
        MutexLock lock(&mutex_);
        return wanted = !to_peer_;
      });
  if (!decoded.ok()) {
    EndWith(decoded, absl::DataLossError(absl::StrCat(peer_, ": ", decoded.message())));
  }
  return wanted && decoded.ok();
}

void GrpcFrameStream::DeliverEnd() {
  std::shared_ptr<FrameSink> sink;
  {
    MutexLock lock(&mutex_);
    if (to_peer_) return;
    sink = sink_;
  }
  if (sink != nullptr) sink->OnPeerFinished();
}

void GrpcFrameStream::WriteDone() {
  {
    MutexLock lock(&mutex_);
    write_done_ = true;
  }
  Pump();
}

void GrpcFrameStream::End() {
  Fifo<OutgoingFrame> urgent, normal;  // dropped, and so released, without the mutex
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    urgent.swap(urgent_);
    normal.swap(normal_);
  }
}

void GrpcFrameStream::EndWith(absl::Status to_peer, absl::Status to_sink) {
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    to_peer_ = std::move(to_peer);
    to_sink_ = std::move(to_sink);
  }
  End();
}

void GrpcFrameStream::Close(absl::Status status) {
  End();
  std::shared_ptr<FrameSink> sink;
  {
    MutexLock lock(&mutex_);
    sink.swap(sink_);
  }
  if (sink != nullptr) sink->OnClosed(std::move(status));
}

void GrpcFrameStream::Pump() {
  Action action;
  mutex_.Lock();
  if (pumping_) {
    mutex_.Unlock();
    return;
  }
  pumping_ = true;
  while ((action = NextAction())) {
    mutex_.Unlock();
    action();
    mutex_.Lock();
  }
  pumping_ = false;
  mutex_.Unlock();
}

GrpcFrameStream::Action GrpcFrameStream::NextAction() {
  if (write_done_) {
    write_done_ = false;
    return [this] {
      budget_.Written(write_buffer_.Length(), MonotonicTime::Now() - write_begin_);
      write_buffer_.Clear();
      MutexLock lock(&mutex_);
      writing_ = false;
    };
  }
  if (Action action = NextEndAction()) return action;
  if (ended_ || writing_) return nullptr;
  TakeFrames();
  if (outgoing_.empty()) return finish_requested_ ? NextFinishAction() : nullptr;
  writing_ = true;
  return [this] {
    write_buffer_ = EncodeFrames(absl::MakeSpan(outgoing_));
    outgoing_.clear();
    write_begin_ = MonotonicTime::Now();
    StartWriting(&write_buffer_);
  };
}

void GrpcFrameStream::TakeFrames() {
  size_t bytes = 0;
  while (outgoing_.size() < kMostFramesTogether) {
    Fifo<OutgoingFrame>& queue = urgent_.empty() ? normal_ : urgent_;
    if (queue.empty()) return;
    bytes += EncodedBytes(queue.front());
    if (!outgoing_.empty() && bytes > budget_.bytes()) return;
    outgoing_.push_back(queue.pop_front());
  }
}

// What must not be destroyed on a thread of gRPC: the last channel's destructor joins those threads
// (in gRPC 1.51 one that joined itself freed their queue under its own feet). And the call keeps
// what it could not send, so it must not live for as long as somebody keeps the stream.
struct Call {
  explicit Call(std::shared_ptr<grpc::Channel> channel) : stub(std::move(channel)) {}

  grpc::GenericStub stub;
  grpc::ClientContext context;
};

// Whoever lets go last, the call is destroyed on a thread of its own.
std::shared_ptr<Call> NewCall(std::shared_ptr<grpc::Channel> channel) {
  return std::shared_ptr<Call>(new Call(std::move(channel)),
                               [](Call* call) { std::thread([call] { delete call; }).detach(); });
}

class ClientStream : public GrpcFrameStream,
                     public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public std::enable_shared_from_this<ClientStream> {
 public:
  ClientStream(const std::string& address, std::shared_ptr<grpc::Channel> channel,
               const StreamProof& proof, const std::string& answer)
      : GrpcFrameStream(address), call_(NewCall(std::move(channel))) {
    if (!answer.empty()) call_->context.AddMetadata(kProofMetadata, answer);
    if (!proof.run.empty()) call_->context.AddMetadata(kRunMetadata, proof.run);
    if (!proof.key.empty()) call_->context.AddMetadata(kKeyMetadata, proof.key);
  }

  // Returns when the peer has accepted.
  absl::Status Open(std::shared_ptr<FrameSink> sink, Deadline deadline) {
    SetSink(std::move(sink));
    {
      MutexLock lock(&mutex_);
      self_ = shared_from_this();
      call_->context.set_wait_for_ready(true);
      call_->stub.PrepareBidiStreamingCall(&call_->context, kExchangeMethod, grpc::StubOptions(),
                                           this);
    }
    AddHold();
    StartCall();
    return AwaitAcceptance(deadline);
  }

  // Once opened.
  std::string ConnectedTo() const {
    MutexLock lock(&mutex_);
    return connected_to_;
  }

  void OnReadInitialMetadataDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      if (ok && !opening_result_) opening_result_ = absl::OkStatus();
      ok = ok && opening_result_->ok();
      if (ok && call_ != nullptr) connected_to_ = call_->context.peer();
      changed_.SignalAll();
    }
    if (ok) {
      StartRead(&read_buffer_);
    } else {
      ReadingEnded();
    }
  }

  void OnReadDone(bool ok) override {
    if (ok && Deliver()) {
      StartRead(&read_buffer_);
    } else {
      ReadingEnded();
    }
  }

  void OnWriteDone(bool /*ok*/) override { WriteDone(); }

  void OnDone(const grpc::Status& grpc_status) override {
    std::shared_ptr<ClientStream> self;
    std::shared_ptr<Call> call;
    absl::Status status = ToAbslStatus(grpc_status);
    bool opened;
    {
      MutexLock lock(&mutex_);
      self.swap(self_);
      call.swap(call_);
      if (to_peer_) {
        status = to_sink_;
      } else if (grpc_status.ok()) {
        status = finish_requested_ ? absl::OkStatus()
                                   : absl::UnavailableError(absl::StrCat(
                                         peer_, ": the peer left before this end had finished"));
      } else {
        status = absl::Status(status.code(), absl::StrCat(peer_, ": ", status.message()));
      }
      if (!opening_result_) opening_result_ = status;
      opened = opening_result_->ok();
      changed_.SignalAll();
    }
    call.reset();
    if (!opened) SetSink(nullptr);
    Close(std::move(status));
  }

 private:
  absl::Status AwaitAcceptance(Deadline deadline) {
    {
      MutexLock lock(&mutex_);
      while (!opening_result_) {
        if (changed_.WaitWithDeadline(&mutex_, deadline) && !opening_result_) {
          opening_result_ = absl::DeadlineExceededError(
              absl::StrCat("no stream to ", peer_, ": nobody accepted it before the deadline"));
        }
      }
      if (!absl::IsDeadlineExceeded(*opening_result_)) return *opening_result_;
    }
    Cancel(absl::CancelledError("nobody accepted before the deadline"));
    MutexLock lock(&mutex_);
    return *opening_result_;
  }

  void ReadingEnded() {
    End();
    {
      MutexLock lock(&mutex_);
      reading_ended_ = true;
    }
    Pump();
  }

  void StartWriting(const grpc::ByteBuffer* message) override { StartWrite(message); }

  Action NextEndAction() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (to_peer_ && !cancelled_ && call_ != nullptr) {
      cancelled_ = true;
      return [call = call_] { call->context.TryCancel(); };
    }
    if (reading_ended_ && held_) {
      held_ = false;
      return [this] { RemoveHold(); };
    }
    return nullptr;
  }

  Action NextFinishAction() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (half_closed_) return nullptr;
    half_closed_ = true;
    return [this] { StartWritesDone(); };
  }

  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);  // null when the call is over
  std::shared_ptr<ClientStream> self_ ABSL_GUARDED_BY(mutex_);
  std::string connected_to_ ABSL_GUARDED_BY(mutex_);  // as gRPC names it
  absl::optional<absl::Status> opening_result_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Until reading has ended, operations may start outside of reactions; the call must not be over
  // before.
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace

absl::StatusOr<std::shared_ptr<FrameStream>> OpenClientStream(
    const std::string& address, std::shared_ptr<grpc::Channel> channel, const StreamProof& proof,
    const std::string& secret, SilenceWatch* watch, std::shared_ptr<FrameSink> sink,
    Deadline deadline) {
  for (bool again = false;; again = true) {
    std::string answer;
    if (!secret.empty()) {
      GS_ASSIGN_OR_RETURN(answer, MakeProof(address, channel, secret, deadline));
    }
    auto stream = std::make_shared<ClientStream>(address, channel, proof, answer);
    const absl::Status opened = stream->Open(sink, deadline);
    if (opened.ok()) {
      if (watch != nullptr) watch->Add(stream->ConnectedTo(), stream);
      return stream;
    }
    // The proof may have come too late, or to another process than its challenge was from.
    if (absl::IsUnauthenticated(opened) && !secret.empty() && !again) continue;
    if (!absl::IsDeadlineExceeded(opened)) return opened;
    const std::string why = WhyNotConnected(channel);
    return why.empty() ? opened
                       : absl::DeadlineExceededError(absl::StrCat(opened.message(), ": ", why));
  }
}

namespace {

// How long a peer has to take in why we cancel. A stopped one takes all of it, and the farewell of
// rank 0's store or of a server comes on top: both must fit into the two seconds between the
// failure timeout and the promised end, with room for a busy machine.
constexpr absl::Duration kLinger = absl::Milliseconds(500);

// Trailers are limited to 8 KiB, and percent-encoding triples a byte.
constexpr size_t kMaxReasonBytes = 2048;

std::string Metadata(const grpc::GenericCallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  if (found == context.client_metadata().end()) return "";
  return std::string(found->second.data(), found->second.size());
}

class ServerStream : public GrpcFrameStream,
                     public grpc::ServerGenericBidiReactor,
                     public std::enable_shared_from_this<ServerStream> {
 public:
  ServerStream(grpc::GenericCallbackServerContext* context,
               std::shared_ptr<StreamRegistry> registry, AlarmClock* clock)
      : GrpcFrameStream(context->peer()),
        context_(context),
        registry_(std::move(registry)),
        clock_(clock),
        proof_{Metadata(*context, kRunMetadata), Metadata(*context, kKeyMetadata)} {}

  StreamProof proof() const override { return proof_; }

  // gRPC has not bound the call yet; it keeps what is started here until it has.
  void Accept(const StreamAcceptor& acceptor) {
    {
      MutexLock lock(&mutex_);
      self_ = shared_from_this();
    }
    std::shared_ptr<FrameSink> sink = acceptor(shared_from_this());
    if (sink == nullptr) Cancel(absl::UnavailableError("the stream was refused"));
    SetSink(std::move(sink));
    {
      MutexLock lock(&mutex_);
      if (ended_) return;
    }
    StartSendInitialMetadata();
    StartRead(&read_buffer_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      if (Deliver()) {
        StartRead(&read_buffer_);
        return;
      }
    } else {
      {
        MutexLock lock(&mutex_);
        peer_finished_ = true;
      }
      DeliverEnd();
    }
    Pump();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) Lose();
    WriteDone();
  }

  void OnCancel() override {
    Lose();
    Pump();
  }

  void OnDone() override {
    clock_->Cancel(alarm_);
    std::shared_ptr<ServerStream> self;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      self.swap(self_);
      if (to_peer_) {
        status = to_sink_;
      } else if (lost_) {
        status = Lost();
      }
      context_ = nullptr;
    }
    Close(std::move(status));
    std::shared_ptr<StreamRegistry> registry = registry_;
    self.reset();
    registry->Remove();
  }

 private:
  absl::Status Lost() const {
    return absl::UnavailableError(absl::StrCat(peer_, ": lost, or cancelled there"));
  }

  void Lose() {
    End();
    MutexLock lock(&mutex_);
    lost_ = true;
  }

  void StartWriting(const grpc::ByteBuffer* message) override { StartWrite(message); }

  Action NextEndAction() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (to_peer_ || lost_) {
      if (!finishing_) {
        finishing_ = true;
        return [this, reason = to_peer_ ? *to_peer_ : Lost()] { FinishWith(reason); };
      }
      if (finishing_in_order_) reset_due_ = true;
      finishing_in_order_ = false;
    }
    if (!reset_due_ || context_ == nullptr) return nullptr;
    reset_due_ = false;
    // The context may go as soon as the mutex is free; the call stays while it is referenced.
    grpc_call* call = context_->c_call();
    grpc_call_ref(call);
    return [call] {
      grpc_call_cancel(call, nullptr);
      grpc_call_unref(call);
    };
  }

  Action NextFinishAction() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!peer_finished_ || finishing_) return nullptr;
    finishing_ = true;
    finishing_in_order_ = true;
    return [this] { grpc::ServerGenericBidiReactor::Finish(grpc::Status::OK); };
  }

  void FinishWith(absl::Status reason) {
    if (reason.message().size() > kMaxReasonBytes) {
      reason = absl::Status(reason.code(), reason.message().substr(0, kMaxReasonBytes));
    }
    alarm_ = clock_->Set(Deadline::In(kLinger), [weak = weak_from_this()] {
      auto self = weak.lock();
      if (self == nullptr) return;
      {
        MutexLock lock(&self->mutex_);
        self->reset_due_ = true;
      }
      self->Pump();
    });
    grpc::ServerGenericBidiReactor::Finish(ToGrpcStatus(reason));
  }

  grpc::GenericCallbackServerContext* context_
      ABSL_GUARDED_BY(mutex_);  // null when the call is over
  const std::shared_ptr<StreamRegistry> registry_;
  AlarmClock* const clock_;  // until registry_ is told that the stream has closed
  const StreamProof proof_;
  std::shared_ptr<ServerStream> self_ ABSL_GUARDED_BY(mutex_);
  AlarmClock::Ticket alarm_ = 0;  // set before Finish(), read by OnDone()
  bool peer_finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_in_order_ ABSL_GUARDED_BY(mutex_) = false;
  bool reset_due_ ABSL_GUARDED_BY(mutex_) = false;
};

// A call that ends before it has begun.
class RefusedCall : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* FrameService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  if (context->method() == kChallengeMethod) return NewChallengeCall(&checker_);
  if (context->method() != kExchangeMethod) {
    if (health_ != nullptr) {
      if (auto* const answer = health_->Answer(context->method())) return answer;
    }
    return new RefusedCall(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                                        "this server has only " + std::string(kExchangeMethod)));
  }
  const absl::Status proof = checker_.Check(Metadata(*context, kProofMetadata));
  if (!proof.ok()) return new RefusedCall(ToGrpcStatus(proof));
  auto stream = std::make_shared<ServerStream>(context, registry_, &clock_);
  if (!registry_->Add(stream)) {
    return new RefusedCall(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the listener is closing"));
  }
  if (watch_ != nullptr) watch_->Add(context->peer(), stream);
  stream->Accept(acceptor_);
  return stream.get();
}

}  // namespace gradsync
