#include "ps_server/client/server_connection.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"

namespace gradsync {

absl::Status ServerConnection::Connect(StreamLink& link, std::shared_ptr<FrameSink> sink,
                                       Deadline deadline, absl::Duration failure_timeout,
                                       const std::function<bool()>& is_member) {
  int connection;
  {
    MutexLock lock(&mutex_);
    connection = static_cast<int>(streams_.size());
  }
  absl::StatusOr<std::shared_ptr<FrameStream>> stream = ConnectToMember(
      link, address_, connection, std::move(sink), deadline, failure_timeout, is_member);
  if (!stream.ok()) return NoConnection(Name(), stream.status());
  MutexLock lock(&mutex_);
  streams_.push_back(*std::move(stream));
  if (cancelled_) streams_.back()->Cancel(absl::CancelledError("cancelled while connecting"));
  return absl::OkStatus();
}

void ServerConnection::Queue(OutgoingFrame frame, size_t number) {
  {
    MutexLock lock(&mutex_);
    if (!left_ && !cancelled_) {
      queue_.push_back({std::move(frame), static_cast<int>(number % connections_)});
    }
  }
  frame.released.Run();  // if it was not queued
  Pump();
}

absl::Status ServerConnection::AddCredit(int64_t count) {
  {
    MutexLock lock(&mutex_);
    if (count < 1 || count > limit_ - credit_) {
      return absl::InvalidArgumentError(absl::StrCat(Name(), ": expected credit for at most ",
                                                     limit_ - credit_, " chunks, found credit for ",
                                                     count));
    }
    credit_ += count;
  }
  Pump();
  return absl::OkStatus();
}

void ServerConnection::AddResult() {
  {
    MutexLock lock(&mutex_);
    ++lead_;
  }
  Pump();
}

bool ServerConnection::MaySendNext() const {
  if (queue_.empty() || credit_ == 0) return false;
  return lead_ > 0 || queue_[0].frame.header.max_norm() != 0;
}

// One thread at a time, so that chunks reach their streams in order; without the lock, because
// sending may write to the socket, and the threads that receive must not wait for that.
void ServerConnection::Pump() {
  mutex_.Lock();
  if (pumping_) {
    mutex_.Unlock();
    return;
  }
  pumping_ = true;
  while (MaySendNext()) {
    --credit_;
    --lead_;
    Queued next = queue_.pop_front();
    const std::shared_ptr<FrameStream> stream = streams_[next.connection];
    mutex_.Unlock();
    sent_.Sent(static_cast<int64_t>(next.frame.payload.size()));
    RecordSend(recorder_, process_, &next.frame);
    stream->Send(std::move(next.frame));
    mutex_.Lock();
  }
  pumping_ = false;
  mutex_.Unlock();
}

void ServerConnection::Send(OutgoingFrame frame, int connection) {
  std::shared_ptr<FrameStream> stream;
  {
    MutexLock lock(&mutex_);
    if (!cancelled_) stream = streams_[connection];
  }
  if (stream != nullptr) stream->Send(std::move(frame));
}

void ServerConnection::Leave() {
  MutexLock lock(&mutex_);
  for (const auto& stream : streams_) {
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::GOODBYE);
    stream->Send(std::move(frame));
    stream->Finish();
  }
}

void ServerConnection::LeaveWith(const absl::Status& error, bool at_once) {
  Fifo<Queued> dropped;  // and so released, without the mutex
  MutexLock lock(&mutex_);
  left_ = true;
  dropped.swap(queue_);
  for (const auto& stream : streams_) {
    OutgoingFrame frame;
    frame.header = FailedHeader(error);
    frame.urgent = at_once;
    stream->Send(std::move(frame));
    stream->Finish();
  }
}

void ServerConnection::Cancel(const absl::Status& reason) {
  Fifo<Queued> dropped;  // and so released, without the mutex
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    dropped.swap(queue_);
    for (const auto& stream : streams_) stream->Cancel(reason);
  }
}

}  // namespace gradsync
