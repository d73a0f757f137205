#include "allreduce/nccl_watchdog.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::Duration kDrainInterval = absl::Microseconds(200);
constexpr absl::string_view kSuspect = "nccl/suspect";

std::string ProgressKey(const WorkerGroup& group, int rank) {
  return group.Key(absl::StrCat("nccl/progress/", rank));
}

}  // namespace

NcclWatchdog::NcclWatchdog(NcclWatchdogOptions options,
                           std::function<void(absl::Status)> on_failure)
    : options_(std::move(options)), on_failure_(std::move(on_failure)) {
  if (options_.group.world_size > 1) {
    watcher_ = options_.group.store->Watch(options_.group.Key(kSuspect),
                                           [this](absl::StatusOr<std::string> value) {
                                             MutexLock lock(&mutex_);
                                             suspected_ = suspected_ || value.ok();
                                             changed_.SignalAll();
                                           });
  }
  thread_ = std::thread([this] { Loop(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  watcher_.reset();
}

bool NcclWatchdog::Before(Position a, Position b) {
  return a.step != b.step ? a.step < b.step : a.bucket < b.bucket;
}

std::string NcclWatchdog::Describe(Position position) {
  if (position.bucket == kBroadcast) {
    return absl::StrCat("the broadcast after step ", position.step);
  }
  if (position.bucket < 0) return "no bucket";
  return absl::StrCat("bucket ", position.bucket, " of step ", position.step);
}

void NcclWatchdog::Launched(int64_t step, int bucket) {
  MutexLock lock(&mutex_);
  launched_ = {step, bucket};
}

void NcclWatchdog::Watch(int64_t step, int bucket, std::shared_ptr<NcclWork> work) {
  MutexLock lock(&mutex_);
  watched_.push_back({{step, bucket}, std::move(work)});
  if (watched_.size() == 1) changed_.SignalAll();
}

void NcclWatchdog::Fail(absl::Status status) {
  MutexLock lock(&mutex_);
  if (found_.ok()) found_ = std::move(status);
  changed_.SignalAll();
}

void NcclWatchdog::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.SignalAll();
}

absl::Status NcclWatchdog::Drain(Deadline deadline) {
  MutexLock lock(&mutex_);
  draining_ = true;
  changed_.SignalAll();
  while (!watched_.empty() && !stopped_) {
    if (!changed_.WaitWithDeadline(&mutex_, deadline) || watched_.empty()) continue;
    draining_ = false;
    return absl::DeadlineExceededError(
        absl::StrCat("NCCL at rank ", options_.group.RankOfJob(options_.group.rank), ", ",
                     Describe(watched_.front().position), ": not done at its deadline"));
  }
  draining_ = false;
  if (!stopped_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "NCCL at rank ", options_.group.RankOfJob(options_.group.rank), ": the group has failed"));
}

void NcclWatchdog::Loop() {
  while (true) {
    absl::Status found;
    Position waited_for;
    bool publish = false;
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      publish = suspected_ && !published_;
      const bool look = !stopped_ && (!found_.ok() || !watched_.empty());
      if (!publish && !look) {
        changed_.Wait(&mutex_);
        continue;
      }
      found = found_;
      waited_for = launched_;
    }
    if (publish) {
      PublishProgress();
      continue;
    }
    if (found.ok()) found = Look(&waited_for);
    if (!found.ok()) {
      const std::string who = WhoIsBehind(waited_for);
      Stop();
      on_failure_(absl::Status(found.code(), absl::StrCat(found.message(), who)));
      continue;
    }
    MutexLock lock(&mutex_);
    if (watched_.empty() || closing_ || stopped_ || !found_.ok()) continue;
    changed_.WaitWithDeadline(&mutex_,
                              Deadline::In(draining_ ? kDrainInterval : options_.interval));
  }
}

// Takes what is done off the queue, and checks the work that is then its head.
absl::Status NcclWatchdog::Look(Position* waited_for) {
  while (true) {
    std::shared_ptr<NcclWork> work;
    {
      MutexLock lock(&mutex_);
      if (watched_.empty()) break;
      work = watched_.front().work;
      *waited_for = watched_.front().position;
    }
    const absl::StatusOr<bool> done = work->Done();
    if (!done.ok()) return done.status();
    if (*done) {
      late_.reset();
      MutexLock lock(&mutex_);
      done_ = watched_.front().position;
      watched_.pop_front();
      if (watched_.empty()) changed_.SignalAll();
      continue;
    }
    GS_RETURN_IF_ERROR(options_.communicator->CheckAsync());
    if (!late_.has_value()) {
      const absl::StatusOr<bool> ready = work->Ready();
      if (!ready.ok()) return ready.status();
      if (*ready) late_.emplace(Deadline::In(options_.group.timeout));
    }
    if (!late_.has_value() || !late_->Passed()) break;
    return absl::DeadlineExceededError(absl::StrCat(
        "NCCL at rank ", options_.group.RankOfJob(options_.group.rank), ", ", Describe(*waited_for),
        ": not done ", absl::FormatDuration(options_.group.timeout), " after it could begin"));
  }
  return absl::OkStatus();
}

// What this rank has come to: the last bucket whose gradient is there and that was handed to NCCL.
void NcclWatchdog::PublishProgress() {
  published_ = true;
  std::deque<Watched> watched;
  Position begun;
  Position launched;
  {
    MutexLock lock(&mutex_);
    watched = watched_;
    begun = done_;
    launched = launched_;
  }
  bool all = true;
  for (const Watched& entry : watched) {
    const absl::StatusOr<bool> ready = entry.work->Ready();
    all = ready.ok() && *ready;
    if (!all) break;
    begun = entry.position;
  }
  if (all) begun = launched;
  options_.group.store
      ->Set(ProgressKey(options_.group, options_.group.rank),
            absl::StrCat(begun.step, " ", begun.bucket), Deadline::In(options_.grace))
      .IgnoreError();  // those who wait for it say so
}

// "; rank 2 does not answer; rank 3 has come to bucket 1 of step 7": what to add to a failure.
std::string NcclWatchdog::WhoIsBehind(Position waited_for) {
  const WorkerGroup& group = options_.group;
  if (group.world_size == 1) return "";
  const Deadline until = Deadline::In(options_.grace);
  group.store
      ->SetIfAbsent(group.Key(kSuspect), absl::StrCat("rank ", group.RankOfJob(group.rank)), until)
      .IgnoreError();
  if (!published_) PublishProgress();
  std::string who;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if (rank == group.rank) continue;
    const absl::StatusOr<std::string> text = group.store->Get(ProgressKey(group, rank), until);
    if (!text.ok()) {
      absl::StrAppend(&who, "; rank ", group.RankOfJob(rank), " does not answer");
      continue;
    }
    const std::vector<std::string> words = absl::StrSplit(*text, ' ');
    Position begun;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &begun.step) ||
        !absl::SimpleAtoi(words[1], &begun.bucket)) {
      absl::StrAppend(&who, "; rank ", group.RankOfJob(rank), " answers \"", *text, "\"");
    } else if (Before(begun, waited_for)) {
      absl::StrAppend(&who, "; rank ", group.RankOfJob(rank), " has come to ", Describe(begun));
    }
  }
  return who.empty() ? "; all ranks have begun it" : who;
}

}  // namespace gradsync
