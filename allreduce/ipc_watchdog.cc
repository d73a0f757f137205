#include "allreduce/ipc_watchdog.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

constexpr absl::Duration kDrainInterval = absl::Microseconds(200);

}  // namespace

IpcWatchdog::IpcWatchdog(IpcWatchdogOptions options, std::function<void(absl::Status)> on_failure)
    : options_(std::move(options)),
      on_failure_(std::move(on_failure)),
      thread_([this] { Loop(); }) {}

IpcWatchdog::~IpcWatchdog() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void IpcWatchdog::Watch(uint32_t launch, std::string name, std::shared_ptr<NcclWork> work) {
  MutexLock lock(&mutex_);
  watched_.push_back({launch, std::move(name), std::move(work)});
  if (watched_.size() == 1) changed_.SignalAll();
}

void IpcWatchdog::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.SignalAll();
}

absl::Status IpcWatchdog::Drain(Deadline deadline) {
  MutexLock lock(&mutex_);
  draining_ = true;
  changed_.SignalAll();
  while (!watched_.empty() && !stopped_) {
    if (!changed_.WaitWithDeadline(&mutex_, deadline) || watched_.empty()) continue;
    draining_ = false;
    return Late(watched_.front(), "at its deadline");
  }
  draining_ = false;
  if (!stopped_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuda_ipc at ", Own(), ": the group has failed"));
}

void IpcWatchdog::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      if (stopped_ || watched_.empty()) {
        changed_.Wait(&mutex_);
        continue;
      }
    }
    const absl::Status found = Look();
    if (!found.ok()) {
      Stop();
      on_failure_(found);
      continue;
    }
    MutexLock lock(&mutex_);
    if (watched_.empty() || closing_ || stopped_) continue;
    changed_.WaitWithDeadline(&mutex_,
                              Deadline::In(draining_ ? kDrainInterval : options_.interval));
  }
}

// Takes what is done off the queue, and checks the work that is then its head. The flags say how
// far that is, and CUDA is asked only where the stream waits for no other rank: a thread that frees
// memory waits for the device inside CUDA, and may keep others out of it until then.
absl::Status IpcWatchdog::Look() {
  const IpcFlags& flags = *options_.flags;
  while (true) {
    Watched head;
    {
      MutexLock lock(&mutex_);
      if (watched_.empty()) return absl::OkStatus();
      head = watched_.front();
    }
    const bool begun = flags.Reached(flags.self(), IpcFlags::kContributed, head.launch);
    const bool all_here = begun && flags.AllReached(IpcFlags::kContributed, head.launch);
    const absl::StatusOr<bool> done = !begun     ? head.work->Ready()
                                      : all_here ? head.work->Done()
                                                 : false;
    if (!done.ok()) return done.status();
    if (all_here && *done) {
      late_.reset();
      MutexLock lock(&mutex_);
      watched_.pop_front();
      if (watched_.empty()) changed_.SignalAll();
      continue;
    }
    if (begun && !late_.has_value()) late_.emplace(Deadline::In(options_.timeout));
    if (!late_.has_value() || !late_->Passed()) return absl::OkStatus();
    return Late(head,
                absl::StrCat(absl::FormatDuration(options_.timeout), " after it could begin"));
  }
}

// Whose counters are behind. Who has not contributed is named alone: owners wait for it, too.
absl::Status IpcWatchdog::Late(const Watched& watched, const std::string& what) const {
  const IpcFlags& flags = *options_.flags;
  std::string who;
  for (int rank = 0; rank < flags.ranks(); ++rank) {
    const uint32_t found = flags.Read(rank, IpcFlags::kContributed);
    if (flags.Reached(rank, IpcFlags::kContributed, watched.launch)) continue;
    absl::StrAppend(&who, "; ", options_.names[rank], " has not come to it, but is ",
                    watched.launch - found, " behind");
  }
  const bool all_here = who.empty();
  for (int rank = 0; rank < flags.ranks(); ++rank) {
    if (!all_here || flags.Reached(rank, IpcFlags::kFolded, watched.launch)) continue;
    absl::StrAppend(&who, "; ", options_.names[rank], " has come to it, and has not done its part");
  }
  if (who.empty()) who = "; all ranks have done their part";
  return absl::DeadlineExceededError(
      absl::StrCat("cuda_ipc at ", Own(), ", ", watched.name, ": not done ", what, who));
}

const std::string& IpcWatchdog::Own() const { return options_.names[options_.flags->self()]; }

}  // namespace gradsync
