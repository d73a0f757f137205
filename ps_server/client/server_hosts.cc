#include "ps_server/client/server_hosts.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/errors.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/links/member_stream.h"
#include "proto/parameter_server.pb.h"

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

}  // namespace gradsync
