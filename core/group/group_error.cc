#include "core/group/group_error.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/group/heartbeat.h"

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

// A rank gave up waiting. It has not failed, and does not know who has.
bool WaitedInVain(const WorkerGroup& group, const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && group.rank != kNoRank &&
         !BeginsWithCulprit(status.message());
}

// What is published when a member reports `status`: who is to blame comes first. That is the member
// itself, unless it waited in vain, or the status begins with somebody else, whom it has merely seen
// fail.
std::string ReasonOf(const WorkerGroup& group, const absl::Status& status) {
  std::string reason(status.message());
  if (WaitedInVain(group, status)) {
    reason = absl::StrCat("nobody is known to have failed, but rank ", group.RankOfJob(group.rank),
                          " waited in vain: ", status.message());
  } else if (group.rank != kNoRank && !BeginsWithCulprit(status.message())) {
    reason =
        absl::StrCat("rank ", group.RankOfJob(group.rank), " failed first: ", status.ToString());
  }
  return reason.substr(0, kMaxReason);
}

// Sets what makes the watchdog look.
void AskWhoFailed(const WorkerGroup& group, const absl::Status& status) {
  if (!WaitedInVain(group, Certain(status))) return;
  group.store->Set(InVainKey(group.JobKey("")), "", Deadline::In(kPublishTimeout)).IgnoreError();
}

// `own` may have been published before, by another part of this rank.
absl::Status VerdictOf(const absl::Status& own, absl::string_view published) {
  return absl::StrContains(published, own.message()) ? own : absl::AbortedError(published);
}

absl::StatusOr<std::string> Publish(const WorkerGroup& group, const absl::Status& status) {
  return group.store->Fail(group.JobKey(""), ReasonOf(group, status),
                           Deadline::In(kPublishTimeout));
}

}  // namespace

absl::Duration PatienceFor(const WorkerGroup& group, const absl::Status& status) {
  const absl::Duration patience = PatienceWith(status);
  if (!WaitedInVain(group, Certain(status))) return patience;
  return std::max(patience, JudgePatience(group.failure_timeout));
}

absl::Status PublishFailure(const WorkerGroup& group, const absl::Status& status) {
  AskWhoFailed(group, status);
  const absl::Duration patience = PatienceFor(group, status);
  const absl::Status own = Certain(status);
  if (patience > absl::ZeroDuration()) {
    const absl::Status known =
        group.store->Get(group.JobKey(kFailureKey), Deadline::In(patience)).status();
    if (absl::IsAborted(known)) return VerdictOf(own, known.message());
  }
  const absl::StatusOr<std::string> first = Publish(group, own);
  return first.ok() ? VerdictOf(own, *first) : own;
}

bool FailedByOthers(const absl::Status& status) {
  if (absl::IsAborted(status) || absl::IsDeadlineExceeded(status)) return true;
  // An address that is taken is unavailable too.
  return absl::IsUnavailable(status) && BeginsWithCulprit(status.message());
}

GroupError::GroupError(const WorkerGroup& group, std::function<void(absl::Status)> on_failure,
                       Notice notice)
    : group_(group), on_failure_(std::move(on_failure)), notice_(std::move(notice)) {
  // A failure ends the wait for any of the group's keys, so one watch serves for both.
  watcher_ = Watch(notice_.key.empty() ? group_.JobKey(kFailureKey) : notice_.key);
  publisher_ = Thread([this] { PublishLoop(); });
}

GroupError::~GroupError() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  publisher_.join();
  watcher_.reset();  // its callback sets the other one
  std::unique_ptr<KeyValueStore::Watcher> after_notice;
  MutexLock lock(&mutex_);
  after_notice.swap(after_notice_);
}

std::unique_ptr<KeyValueStore::Watcher> GroupError::Watch(const std::string& key) {
  return group_.store->Watch(
      key, [this](const absl::StatusOr<std::string>& value) { OnWatched(value); });
}

void GroupError::OnWatched(const absl::StatusOr<std::string>& value) {
  if (absl::IsAborted(value.status())) return FailWith(Verdict(value.status().message()));
  if (!value.ok()) return Fail(LostStore(value.status()));
  std::unique_ptr<KeyValueStore::Watcher> next = Watch(group_.JobKey(kFailureKey));
  {
    MutexLock lock(&mutex_);
    if (!closing_) after_notice_.swap(next);
  }
  if (notice_.on_value) notice_.on_value(*value);
}

void GroupError::Report(absl::Status status) {
  MutexLock lock(&mutex_);
  if (leaving_ || !reported_.ok()) return;
  reported_ = std::move(status);
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
  const absl::Status own = Certain(reported_);
  if (!own.ok() && reason == ReasonOf(group_, own)) return own;
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
  absl::Status reported;
  {
    MutexLock lock(&mutex_);
    while (!closing_ && reported_.ok()) changed_.Wait(&mutex_);
    if (reported_.ok() || !status_.ok()) return;
    reported = reported_;
  }
  AskWhoFailed(group_, reported);
  const Deadline patience = Deadline::In(PatienceFor(group_, reported));
  {
    MutexLock lock(&mutex_);
    while (!closing_ && status_.ok() && !changed_.WaitWithDeadline(&mutex_, patience)) {
    }
    if (!status_.ok()) return;
  }
  const absl::Status local = Certain(reported);
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
