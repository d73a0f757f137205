#include "core/group/sync_handle.h"

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"

namespace gradsync {
namespace internal {

struct HandleState {
  HandleState(std::string what, std::weak_ptr<SyncDriver> driver)
      : what(std::move(what)), driver(std::move(driver)) {}

  // A plain success has nothing to say but itself. So it takes no lock to come to one, if nobody watches,
  // nor to ask for it.
  enum Outcome { kOpen, kWatched, kPlainSuccess, kOther };

  bool is_resolved() const { return outcome.load(std::memory_order_acquire) > kWatched; }

  // Whoever resolves it takes the lock from here on. Returns whether somebody still has to.
  bool Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Outcome open = kOpen;
    outcome.compare_exchange_strong(open, kWatched);
    return open <= kWatched;
  }

  // Returns whether it was open.
  bool Close(Outcome with) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Outcome seen = outcome.load();
    while (seen <= kWatched) {
      if (outcome.compare_exchange_weak(seen, with)) return true;
    }
    return false;
  }

  const std::string what;
  const std::weak_ptr<SyncDriver> driver;
  Mutex mutex;
  int64_t step ABSL_GUARDED_BY(mutex) = -1;  // of a series; -1: in no series
  CondVar changed;
  std::atomic<Outcome> outcome{kOpen};
  bool timed ABSL_GUARDED_BY(mutex) = false;
  MonotonicTime resolved_at ABSL_GUARDED_BY(mutex);  // where timed
  absl::Status status ABSL_GUARDED_BY(mutex);
  std::function<absl::Status()> on_wait ABSL_GUARDED_BY(mutex);  // or null
};

}  // namespace internal

absl::Status SyncHandle::Wait(Deadline deadline, const StallNotice& stall) const {
  if (state_ == nullptr) return absl::OkStatus();
  if (!state_->is_resolved()) {
    const std::shared_ptr<SyncDriver> driver = state_->driver.lock();
    if (driver != nullptr) driver->LookClosely([this] { return state_->is_resolved(); });
  }
  return state_->is_resolved() ? Result() : WaitLonger(deadline, stall);
}

absl::Status SyncHandle::Result() const {
  using State = internal::HandleState;
  if (state_->outcome.load(std::memory_order_acquire) == State::kPlainSuccess) {
    return absl::OkStatus();
  }
  std::function<absl::Status()> on_wait;
  {
    MutexLock lock(&state_->mutex);
    if (state_->on_wait == nullptr) return state_->status;
    on_wait = state_->on_wait;
  }
  return on_wait();
}

absl::Status SyncHandle::WaitLonger(Deadline deadline, const StallNotice& stall) const {
  PatientDeadline patience(deadline);
  absl::Duration waited, say_after = stall.after;
  MonotonicTime looked = MonotonicTime::Now();
  while (true) {
    if (!state_->is_resolved()) {
      // Time in which this process was stopped is no time of waiting.
      const MonotonicTime now = MonotonicTime::Now();
      if (now - looked <= PatientDeadline::kLook + PatientDeadline::kLate) waited += now - looked;
      looked = now;
      if (waited >= say_after) {
        stall.say(waited);
        while (say_after <= waited) say_after *= 2;
      }
      const std::shared_ptr<SyncDriver> driver = state_->driver.lock();
      if (driver != nullptr) {
        driver->Drive([this] { return state_->is_resolved(); }, patience.next_look());
      }
    }
    {
      MutexLock lock(&state_->mutex);
      // A driver that comes back early has left the work to another thread.
      while (state_->Watch() &&
             !state_->changed.WaitWithDeadline(&state_->mutex, patience.next_look())) {
      }
    }
    if (state_->is_resolved()) return Result();
    if (!patience.Passed()) continue;
    MutexLock lock(&state_->mutex);
    return absl::DeadlineExceededError(
        absl::StrCat(state_->what, state_->step < 0 ? "" : absl::StrCat(" of step ", state_->step),
                     " is not complete at its deadline"));
  }
}

bool SyncHandle::done() const {
  if (state_ == nullptr || state_->is_resolved()) return true;
  const std::shared_ptr<SyncDriver> driver = state_->driver.lock();
  if (driver != nullptr) driver->Look();
  return state_->is_resolved();
}

void SyncHandle::KeepTime() const {
  MutexLock lock(&state_->mutex);
  state_->timed = true;
  if (!state_->Watch()) state_->resolved_at = MonotonicTime::Now();
}

MonotonicTime SyncHandle::resolved_at() const {
  MutexLock lock(&state_->mutex);
  return state_->resolved_at;
}

SyncPromise::SyncPromise(std::string what, std::weak_ptr<SyncDriver> driver)
    : state_(std::make_shared<internal::HandleState>(std::move(what), std::move(driver))) {}

void SyncPromise::Resolve(absl::Status status, std::function<absl::Status()> on_wait) const {
  using State = internal::HandleState;
  const bool plain = status.ok() && on_wait == nullptr;
  State::Outcome open = State::kOpen;
  if (plain && state_->outcome.compare_exchange_strong(open, State::kPlainSuccess)) return;
  MutexLock lock(&state_->mutex);
  // Seen before the rest is written, which is read under the mutex.
  if (!state_->Close(plain ? State::kPlainSuccess : State::kOther)) return;
  state_->status = std::move(status);
  if (state_->status.ok()) state_->on_wait = std::move(on_wait);
  if (state_->timed) state_->resolved_at = MonotonicTime::Now();
  state_->changed.SignalAll();
}

SyncPromiseSeries::SyncPromiseSeries(const std::string& what,
                                     const std::weak_ptr<SyncDriver>& driver)
    : promises_{SyncPromise(what, driver), SyncPromise(what, driver)} {
  current().Resolve(absl::OkStatus());
}

const SyncPromise& SyncPromiseSeries::Begin(int64_t step) {
  current_ ^= 1;
  SyncPromise& promise = promises_[current_];
  // Nobody else can make it more than one: handles come from here.
  if (promise.state_.use_count() > 1) {
    promise = SyncPromise(promise.state_->what, promise.state_->driver);
  }
  MutexLock lock(&promise.state_->mutex);
  promise.state_->step = step;
  promise.state_->outcome = internal::HandleState::kOpen;
  promise.state_->timed = false;
  promise.state_->status = absl::OkStatus();
  promise.state_->on_wait = nullptr;
  return promise;
}

SyncHandle ResolvedHandle(absl::Status status) {
  if (status.ok()) return SyncHandle(nullptr);
  SyncPromise promise("");
  promise.Resolve(std::move(status));
  return promise.handle();
}

}  // namespace gradsync
