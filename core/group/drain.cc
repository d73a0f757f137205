#include "core/group/drain.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// So that an end does not have to wait for others.
constexpr absl::Duration kSlice = absl::Milliseconds(500);

constexpr char kRequest[] = "drain/request";
constexpr char kLastStep[] = "drain/last_step";

std::string BegunKey(int rank) { return absl::StrCat("drain/begun/", rank); }

std::string Encode(const DrainRequest& request) {
  return absl::StrCat(request.signal, " ", request.who);
}

DrainRequest Decode(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  DrainRequest request;
  if (!absl::SimpleAtoi(parts.first, &request.signal)) request.signal = 0;
  request.who = std::string(parts.second);
  return request;
}

}  // namespace

std::string DrainRequest::ToString() const {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("a request to ", who)
                         : absl::StrCat("SIG", name, " to ", who);
}

absl::StatusOr<DrainRequest> AskToDrain(const WorkerGroup& group, const DrainRequest& request,
                                        Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::string text,
                      group.store->SetIfAbsent(group.JobKey(kRequest), Encode(request), deadline));
  return Decode(text);
}

Drain::Drain(WorkerGroup group, int64_t first_step, std::shared_ptr<Activity> activity)
    : group_(std::move(group)), activity_(std::move(activity)), begun_(first_step - 1) {
  if (group_.store == nullptr) return;
  watcher_ =
      group_.store->Watch(group_.JobKey(kRequest), [this](absl::StatusOr<std::string> request) {
        // The group's failure is others' to notice.
        if (request.ok()) OnRequest(*request);
      });
}

Drain::~Drain() {
  watcher_.reset();  // from here on nobody starts the thread
  {
    MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Drain::Ask(int signal) {
  const DrainRequest own = {signal, absl::StrCat("rank ", group_.rank)};
  if (group_.store == nullptr) {
    MutexLock lock(&mutex_);
    request_ = own;
    last_step_ = begun_;
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(const DrainRequest first,
                      AskToDrain(group_, own, Deadline::In(group_.timeout)));
  OnRequest(Encode(first));
  return absl::OkStatus();
}

absl::StatusOr<bool> Drain::StopBefore(int64_t step) {
  MutexLock lock(&mutex_);
  if (request_.has_value()) {
    const Activity::Wait wait(activity_.get());
    PatientDeadline patience(Deadline::In(group_.timeout));
    while (!last_step_.has_value() && failed_.ok()) {
      const bool late = changed_.WaitWithDeadline(&mutex_, patience.next_look());
      if (late && patience.Passed()) break;
    }
    GS_RETURN_IF_ERROR(failed_);
    if (!last_step_.has_value()) {
      return absl::DeadlineExceededError(
          absl::StrCat(request_->ToString(), ": expected all ranks to say within ",
                       absl::FormatDuration(group_.timeout), " which step they are in"));
    }
    if (step > *last_step_) return true;
  }
  begun_ = step;
  return false;
}

DrainRequest Drain::request() const {
  MutexLock lock(&mutex_);
  return request_.value_or(DrainRequest());
}

void Drain::OnRequest(absl::string_view text) {
  MutexLock lock(&mutex_);
  if (request_.has_value()) return;
  request_ = Decode(text);
  thread_ = std::thread([this, begun = begun_] { Agree(begun); });
}

bool Drain::closing() const {
  MutexLock lock(&mutex_);
  return closing_;
}

// The thread. The training thread cannot do this: it may be inside a step that others, who wait here,
// have to finish with it.
void Drain::Agree(int64_t begun) {
  const absl::StatusOr<int64_t> last = LastStep(begun);
  MutexLock lock(&mutex_);
  if (last.ok()) {
    last_step_ = *last;
  } else {
    failed_ = last.status();
  }
  changed_.SignalAll();
}

absl::StatusOr<int64_t> Drain::LastStep(int64_t begun) {
  GS_RETURN_IF_ERROR(group_.store->Set(group_.JobKey(BegunKey(group_.rank)), absl::StrCat(begun),
                                       Deadline::In(group_.timeout)));
  if (group_.rank == 0) {
    for (int rank = 1; rank < group_.world_size; ++rank) {
      GS_ASSIGN_OR_RETURN(const int64_t other, Await(BegunKey(rank)));
      begun = std::max(begun, other);
    }
    GS_RETURN_IF_ERROR(group_.store->Set(group_.JobKey(kLastStep), absl::StrCat(begun),
                                         Deadline::In(group_.timeout)));
    return begun;
  }
  return Await(kLastStep);
}

absl::StatusOr<int64_t> Drain::Await(absl::string_view key) {
  while (!closing()) {
    const absl::StatusOr<std::string> text =
        group_.store->Get(group_.JobKey(key), Deadline::In(kSlice));
    if (absl::IsDeadlineExceeded(text.status())) continue;
    GS_RETURN_IF_ERROR(text.status());
    int64_t step = 0;
    if (absl::SimpleAtoi(*text, &step)) return step;
    return absl::DataLossError(absl::StrCat(key, ": expected a step, found \"", *text, "\""));
  }
  return absl::CancelledError("the rank has ended");
}

}  // namespace gradsync
