#include "sync/group_error.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace gradsync {
namespace {

constexpr absl::Duration kPublishTimeout = absl::Seconds(2);

// A published error is "rank code message".
std::string Encode(int rank, const absl::Status& status) {
  return absl::StrCat(rank, " ", static_cast<int>(status.code()), " ", status.message());
}

// What rank `self` makes of a published error: its own status back, or ABORTED for another rank's.
absl::Status Decode(const std::string& published, int self) {
  const std::vector<std::string> parts = absl::StrSplit(published, absl::MaxSplits(' ', 2));
  int rank = 0;
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &rank) ||
      !absl::SimpleAtoi(parts[1], &code)) {
    return absl::AbortedError(absl::StrCat("the group failed: ", published));
  }
  const absl::Status status(static_cast<absl::StatusCode>(code), parts[2]);
  if (rank == self) return status;
  return absl::AbortedError(absl::StrCat("rank ", rank, " failed first: ", status.ToString()));
}

}  // namespace

GroupError::GroupError(const WorkerGroup& group, std::function<void(absl::Status)> on_failure)
    : group_(group), on_failure_(std::move(on_failure)) {
  watcher_ = group_.store->Watch(group_.Key("error"), [this](absl::StatusOr<std::string> value) {
    if (value.ok()) return Fail(Decode(*value, group_.rank));
    Fail(absl::UnavailableError(
        absl::StrCat("rank 0, which holds the store, is lost: ", value.status().message())));
  });
  publisher_ = std::thread([this] { PublishLoop(); });
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
  local_ = std::move(status);
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

void GroupError::Fail(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (leaving_ || !status_.ok()) return;
    status_ = status;
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
  }
  const absl::StatusOr<std::string> first = group_.store->SetIfAbsent(
      group_.Key("error"), Encode(group_.rank, local), absl::Now() + kPublishTimeout);
  Fail(first.ok() ? Decode(*first, group_.rank) : local);
}

}  // namespace gradsync
