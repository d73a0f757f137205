#include "group/group_error.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/culprit.h"
#include "base/deadline.h"
#include "base/suspicion.h"

namespace gradsync {
namespace {

constexpr absl::Duration kPublishTimeout = absl::Seconds(2);

// Where the store does not answer: until the watch has said so too.
constexpr absl::Duration kWatchPatience = absl::Milliseconds(500);

// Nobody sets it: whoever waits for it waits for the group's failure.
constexpr char kFailureKey[] = "failure";

// Messages are short, but may hold what a peer or a library said.
constexpr size_t kMaxReason = 2000;

// Whoever gives the store up says that rank 0 is lost (LostStoreHolder()).
bool GaveUpStore(const absl::Status& why) { return absl::StartsWith(why.message(), "rank 0 lost"); }

absl::Status LostStore(const absl::Status& why) {
  if (BeginsWithCulprit(why.message())) return why;
  return absl::UnavailableError(
      absl::StrCat("rank 0, which holds the store, is lost: ", why.message()));
}

// What is published when a member reports `status`: who is to blame comes first. That is the member
// itself, unless the status begins with somebody else, whom the member has merely seen fail.
std::string ReasonOf(const WorkerGroup& group, const absl::Status& status) {
  const std::string reason = group.rank == kNoRank || BeginsWithCulprit(status.message())
                                 ? std::string(status.message())
                                 : absl::StrCat("rank ", group.RankOfJob(group.rank),
                                                " failed first: ", status.ToString());
  return reason.substr(0, kMaxReason);
}

absl::StatusOr<std::string> Publish(const WorkerGroup& group, const absl::Status& status) {
  return group.store->Fail(group.JobKey(""), ReasonOf(group, status),
                           Deadline::In(kPublishTimeout));
}

}  // namespace

absl::StatusOr<std::string> PublishFailure(const WorkerGroup& group, const absl::Status& status) {
  const absl::Duration patience = PatienceWith(status);
  if (patience > absl::ZeroDuration()) {
    const absl::Status known =
        group.store->Get(group.JobKey(kFailureKey), Deadline::In(patience)).status();
    if (absl::IsAborted(known)) return std::string(known.message());
  }
  return Publish(group, Certain(status));
}

bool FailedByOthers(const absl::Status& status) {
  if (absl::IsAborted(status) || absl::IsDeadlineExceeded(status)) return true;
  // An address that is taken is unavailable too.
  return absl::IsUnavailable(status) && BeginsWithCulprit(status.message());
}

GroupError::GroupError(const WorkerGroup& group, std::function<void(absl::Status)> on_failure)
    : group_(group), on_failure_(std::move(on_failure)) {
  watcher_ =
      group_.store->Watch(group_.JobKey(kFailureKey), [this](absl::StatusOr<std::string> value) {
        if (absl::IsAborted(value.status())) return FailWith(Verdict(value.status().message()));
        Fail(LostStore(value.status()));
      });
  publisher_ = Thread([this] { PublishLoop(); });
}

GroupError::~GroupError() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  publisher_.join();
  watcher_.reset();
}

void GroupError::Report(absl::Status status) {
  MutexLock lock(&mutex_);
  if (leaving_ || !local_.ok()) return;
  patience_ = PatienceWith(status);
  local_ = Certain(std::move(status));
  changed_.SignalAll();
}

void GroupError::Leave() {
  MutexLock lock(&mutex_);
  leaving_ = true;
}

absl::Status GroupError::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

// What this rank makes of a published failure: of its own, the status that it reported.
absl::Status GroupError::Verdict(absl::string_view reason) const {
  MutexLock lock(&mutex_);
  if (!local_.ok() && reason == ReasonOf(group_, local_)) return local_;
  return absl::AbortedError(reason);
}

void GroupError::Fail(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (leaving_) return;
  }
  FailWith(std::move(status));
}

void GroupError::FailWith(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = status;
    changed_.SignalAll();
  }
  on_failure_(std::move(status));
}

void GroupError::PublishLoop() {
  absl::Status local;
  {
    MutexLock lock(&mutex_);
    while (!closing_ && local_.ok()) changed_.Wait(&mutex_);
    if (local_.ok() || !status_.ok()) return;
    local = local_;
    const Deadline patience = Deadline::In(patience_);
    while (!closing_ && status_.ok() && !changed_.WaitWithDeadline(&mutex_, patience)) {
    }
    if (!status_.ok()) return;
  }
  const absl::StatusOr<std::string> first = Publish(group_, local);
  if (first.ok()) return Fail(Verdict(*first));
  // Whoever holds the store has failed, or has ended for a failure that was published before this
  // one, and that is what ended the others' streams here. The watch knows which; it may be a moment
  // later than this answer.
  {
    const Deadline patience = Deadline::In(kWatchPatience);
    MutexLock lock(&mutex_);
    while (!closing_ && status_.ok() && !changed_.WaitWithDeadline(&mutex_, patience)) {
    }
    if (!status_.ok()) return;
  }
  // Where the store has been given up meanwhile, what was seen here follows from that.
  Fail(GaveUpStore(first.status()) ? first.status() : local);
}

}  // namespace gradsync
