#include "core/links/grpc_stream_ends.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/grpc_conversions.h"
#include "core/base/status_macros.h"
#include "core/links/grpc_challenge.h"
#include "core/links/grpc_frame_stream.h"
#include "grpc/grpc.h"
#include "grpcpp/generic/generic_stub.h"

namespace gradsync {
namespace {

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
