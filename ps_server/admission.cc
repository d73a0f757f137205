#include "ps_server/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "ps_server/hello_limits.h"

namespace gradsync {
namespace {

// How long a stream may take to say hello once the group is complete: whoever comes then is a
// stranger. Before, a worker may have to wait for the others' streams.
constexpr absl::Duration kPatience = absl::Seconds(5);

// What needs no other hello to be found wrong.
absl::StatusOr<proto::Hello> ReadHello(const Payload& payload, const StreamProof& proof,
                                       const HelloLimits& limits) {
  const std::string bytes = payload.Flat();
  GS_RETURN_IF_ERROR(CheckReadHello(bytes, std::min(kMaxReadHelloBytes, limits.max_memory)));
  proto::Hello message;
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("hello: not a Hello message");
  }
  if (!proof.run.empty() && proof.run != message.run_id()) {
    return absl::InvalidArgumentError(
        "hello: expected the run that the stream's metadata name, found another");
  }
  GS_RETURN_IF_ERROR(CheckHelloTexts(message));
  return message;
}

}  // namespace

Admission::Admission(std::string run_id, int attempt, AdmissionRules rules)
    : limits_(rules.limits),
      proof_required_(rules.proof),
      roster_(std::move(run_id), attempt),
      key_(std::move(rules.key)) {}

absl::Status Admission::Enter(const std::shared_ptr<FrameStream>& stream) {
  MutexLock lock(&mutex_);
  GS_RETURN_IF_ERROR(CheckProof(stream->proof()));
  return guests_.Enter(stream);
}

absl::Status Admission::CheckProof(const StreamProof& proof) const {
  if (proof.run.empty() && proof_required_) {
    return absl::PermissionDeniedError(
        "expected the id of the stream's run in its metadata, found none");
  }
  // Not said which: who knows no run's id is not told one.
  if (!proof.run.empty() && !roster_.run_id().empty() && proof.run != roster_.run_id()) {
    return absl::PermissionDeniedError("this server serves another run than the stream's");
  }
  if (!key_.empty() && !SameSecret(proof.key, key_)) {
    return absl::PermissionDeniedError(
        proof.key.empty() ? "this server serves a job with a key, and the stream brought none"
                          : "this server serves a job with another key than the stream's");
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckOpen(const StreamProof& proof) const {
  if (!closed_.has_value()) return CheckProof(proof);  // the run may be known by now
  return closed_->ok() ? absl::FailedPreconditionError("the run is over") : *closed_;
}

// What takes a time that the message sizes is done without mutex_, which all who end the run need.
absl::Status Admission::Hello(const std::shared_ptr<FrameStream>& stream, const Payload& payload,
                              absl::FunctionRef<void(const Admitted&)> then) {
  if (payload.size() > kMaxHelloBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: expected at most ", kMaxHelloBytes, " bytes, found ", payload.size()));
  }
  MutexLock one_at_a_time(&hello_mutex_);
  const StreamProof proof = stream->proof();
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(CheckOpen(proof));
  }
  GS_ASSIGN_OR_RETURN(proto::Hello message, ReadHello(payload, proof, limits_));
  std::shared_ptr<const CheckedHello> known;
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(roster_.CheckPlace(message));
    known = roster_.first();
  }
  GS_ASSIGN_OR_RETURN(std::shared_ptr<const CheckedHello> hello,
                      CheckHello(std::move(message), limits_, known));
  Admitted admitted;
  {
    MutexLock lock(&mutex_);
    GS_RETURN_IF_ERROR(CheckOpen(proof));
    GS_RETURN_IF_ERROR(roster_.CheckPlace(hello->hello));
    admitted = TakeIn(stream, std::move(hello), proof.key);
  }
  then(admitted);
  return absl::OkStatus();
}

Admission::Admitted Admission::TakeIn(const std::shared_ptr<FrameStream>& stream,
                                      std::shared_ptr<const CheckedHello> hello,
                                      const std::string& key) {
  guests_.Leave(stream.get());
  Admitted admitted;
  admitted.member.stream = stream;
  admitted.differs = roster_.Admit(hello);
  if (admitted.differs == nullptr) {
    if (key_.empty()) key_ = key;
    admitted.member.rank = hello->hello.rank();
    admitted.member.connection = hello->hello.connection();
    admitted.complete = roster_.complete();
  }
  admitted.key = key_;
  admitted.hello = std::move(hello);
  // One that differs ends the run, and hears of that end like all others.
  members_.push_back(admitted.member);
  ++open_;
  return admitted;
}

void Admission::Close(const absl::Status& status) {
  MutexLock lock(&mutex_);
  closed_ = status;
}

void Admission::Leave(const FrameStream* stream) {
  MutexLock lock(&mutex_);
  guests_.Leave(stream);
}

void Admission::CountOut() {
  MutexLock lock(&mutex_);
  --open_;
}

std::vector<std::shared_ptr<FrameStream>> Admission::TakeLate(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return guests_.TakeLate(roster_.complete() ? std::min(timeout, kPatience) : timeout);
}

std::vector<MemberStream> Admission::members() const {
  MutexLock lock(&mutex_);
  return members_;
}

int Admission::open() const {
  MutexLock lock(&mutex_);
  return open_;
}

bool Admission::complete() const {
  MutexLock lock(&mutex_);
  return roster_.complete();
}

int Admission::Number(int rank) const {
  MutexLock lock(&mutex_);
  return roster_.Number(rank);
}

std::string Admission::Name(int rank) const {
  MutexLock lock(&mutex_);
  return roster_.Name(rank);
}

std::string Admission::ServerNumbered(int number) const {
  MutexLock lock(&mutex_);
  return roster_.ServerNumbered(number);
}

std::string Admission::Missing() const {
  MutexLock lock(&mutex_);
  return roster_.Missing();
}

}  // namespace gradsync
