#include "ps_server/client/server_questions.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/errors.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/group/process_trace.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"
#include "proto/parameter_server.pb.h"
#include "proto/step_trace.pb.h"

namespace gradsync {
namespace {

absl::StatusOr<std::string> KeyIn(const proto::FrameHeader& header, const Payload& payload) {
  if (header.kind() == proto::FrameHeader::FAILED) return FailureIn(header);
  const std::string bytes = payload.Flat();
  proto::Host host;
  if (header.kind() != proto::FrameHeader::HOST || !host.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("expected HOST for an answer, found ",
                                                   proto::FrameHeader::Kind_Name(header.kind()),
                                                   " of ", bytes.size(), " bytes"));
  }
  return host.key();
}

class Answer : public FrameSink {
 public:
  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    MutexLock lock(&mutex_);
    if (!key_.has_value()) key_ = KeyIn(header, payload);
  }

  void OnClosed(absl::Status status) override {
    MutexLock lock(&mutex_);
    if (!key_.has_value()) {
      key_ = status.ok() ? absl::UnavailableError("left without an answer") : std::move(status);
    }
    closed_ = true;
    changed_.SignalAll();
  }

  // The key, once the stream is closed.
  absl::StatusOr<std::string> Await(Deadline deadline) {
    MutexLock lock(&mutex_);
    while (!closed_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    if (closed_ || key_.has_value()) return *key_;
    return absl::DeadlineExceededError("no answer to HOST in time");
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  absl::optional<absl::StatusOr<std::string>> key_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::string> Ask(StreamLink& link, const std::string& server, absl::string_view name,
                                Deadline deadline, absl::Duration failure_timeout) {
  const auto answer = std::make_shared<Answer>();
  const auto stream = ConnectToMember(link, server, 0, answer, deadline, failure_timeout,
                                      /*is_member=*/[] { return false; });
  if (!stream.ok()) return NoConnection(name, stream.status());
  OutgoingFrame question;
  question.header.set_kind(proto::FrameHeader::HOST);
  (*stream)->Send(std::move(question));
  (*stream)->Finish();
  absl::StatusOr<std::string> key = answer->Await(deadline);
  (*stream)->Cancel(absl::CancelledError("asked no longer"));
  if (!key.ok()) return Annotate(name, key.status());
  return key;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AskServerHosts(StreamLink& link,
                                                        const std::vector<std::string>& servers,
                                                        Deadline deadline,
                                                        absl::Duration failure_timeout) {
  std::vector<std::string> keys;
  for (const std::string& server : servers) {
    const std::string name = absl::StrCat("server ", keys.size(), " (", server, ")");
    GS_ASSIGN_OR_RETURN(std::string key, Ask(link, server, name, deadline, failure_timeout));
    keys.push_back(std::move(key));
  }
  return keys;
}

OutgoingFrame ServerClock::Ask() {
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::TRACE);
  frame.header.set_count(asked_ < kClocks ? 0 : 1);
  ++asked_;
  asked_ns_ = ClockNow();
  return frame;
}

absl::StatusOr<absl::optional<std::string>> ServerClock::Answer(absl::string_view bytes) {
  const int64_t now = ClockNow();
  proto::ProcessTrace trace;
  if (answered_ == asked_ || !trace.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("TRACE: expected a ProcessTrace that was asked for");
  }
  ++answered_;
  const int64_t error = (now - asked_ns_ + 1) / 2;
  if (error < error_ns_) {
    error_ns_ = error;
    offset_ns_ = asked_ns_ + error - trace.now_ns();
  }
  if (answered_ <= kClocks) return absl::optional<std::string>();
  const bool same = trace.clock() == ClockName();
  trace.set_offset_ns(same ? 0 : offset_ns_);
  trace.set_error_ns(same ? 0 : error_ns_);
  return absl::make_optional(trace.SerializeAsString());
}

}  // namespace gradsync
