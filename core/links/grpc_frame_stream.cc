#include "core/links/grpc_frame_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/errors.h"
#include "core/links/frame_codec.h"

namespace gradsync {
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

}  // namespace gradsync
