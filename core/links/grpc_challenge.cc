#include "core/links/grpc_challenge.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/grpc_conversions.h"
#include "core/base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/challenge.grpc.pb.h"

namespace gradsync {
namespace {

// As long as an answer may take from a peer that could be reached at once.
constexpr absl::Duration kMoment = absl::Milliseconds(500);

// Shared with the callback, which may still hold the mutex when its caller goes on.
struct Answer {
  Mutex mutex;
  CondVar changed;
  absl::optional<grpc::Status> status ABSL_GUARDED_BY(mutex);
};

// By our clock, since gRPC's timers are not to be relied on (core/base/alarm_clock.h).
grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, bool wait_for_connection,
                 Deadline deadline, proto::ChallengeReply* reply) {
  const auto stub = proto::Door::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(wait_for_connection);
  const proto::ChallengeRequest request;
  auto answer = std::make_shared<Answer>();
  stub->async()->Challenge(&context, &request, reply, [answer](grpc::Status status) {
    MutexLock lock(&answer->mutex);
    answer->status = std::move(status);
    answer->changed.SignalAll();
  });
  bool late = false;
  MutexLock lock(&answer->mutex);
  while (!answer->status && !late) {
    late = answer->changed.WaitWithDeadline(&answer->mutex, deadline) && !answer->status;
  }
  if (late) context.TryCancel();
  while (!answer->status) answer->changed.Wait(&answer->mutex);
  if (late && !answer->status->ok()) return {grpc::StatusCode::DEADLINE_EXCEEDED, ""};
  return *answer->status;
}

class ChallengeCall : public grpc::ServerGenericBidiReactor {
 public:
  explicit ChallengeCall(ProofChecker* checker) {
    if (!checker->asks()) {
      Finish(grpc::Status(
          grpc::StatusCode::FAILED_PRECONDITION,
          "the process that was called has no secret (--secret_file), the caller has one"));
      return;
    }
    proto::ChallengeReply reply;
    reply.set_challenge(checker->NewChallenge());
    bool own = false;
    const grpc::Status written =
        grpc::SerializationTraits<proto::ChallengeReply>::Serialize(reply, &reply_, &own);
    if (!written.ok()) {
      Finish(written);
    } else {
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
    }
  }

  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer reply_;
};

}  // namespace

std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel) {
  proto::ChallengeReply reply;
  const grpc::Status status =
      Ask(channel, /*wait_for_connection=*/false, Deadline::In(kMoment), &reply);
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? status.error_message() : "";
}

absl::StatusOr<std::string> MakeProof(const std::string& address,
                                      const std::shared_ptr<grpc::Channel>& channel,
                                      const std::string& secret, Deadline deadline) {
  proto::ChallengeReply reply;
  const grpc::Status status = Ask(channel, /*wait_for_connection=*/true, deadline, &reply);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    const std::string why = WhyNotConnected(channel);
    return absl::DeadlineExceededError(absl::StrCat("no stream to ", address,
                                                    ": nobody answered before the deadline",
                                                    why.empty() ? "" : ": ", why));
  }
  if (!status.ok()) {
    const absl::Status refused = ToAbslStatus(status);
    return absl::Status(refused.code(), absl::StrCat(address, ": ", refused.message()));
  }
  return ProofMaker(secret, reply.challenge()).Next();
}

grpc::ServerGenericBidiReactor* NewChallengeCall(ProofChecker* checker) {
  return new ChallengeCall(checker);
}

}  // namespace gradsync
