// The future of one bucket's exchange, and the promise that a backend resolves it with.

#ifndef GRADSYNC_CORE_GROUP_SYNC_HANDLE_H_
#define GRADSYNC_CORE_GROUP_SYNC_HANDLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

namespace internal {
struct HandleState;
}  // namespace internal

// What makes an exchange go on, where that needs a thread. A thread that waits for a handle is lent
// to it: that thread is awake, and has a core.
class SyncDriver {
 public:
  virtual ~SyncDriver() = default;

  // Works until `done` or the deadline, or returns early when another thread does. Thread-safe.
  virtual void Drive(absl::FunctionRef<bool()> done, Deadline deadline) = 0;

  // Resolves what is complete, where nobody has been woken for that. Never waits; thread-safe.
  virtual void Look() {}

  // Works for some microseconds, or until `done`, where it may be as close as that: before a wait
  // that sleeps. Thread-safe.
  virtual void LookClosely(absl::FunctionRef<bool()> /*done*/) {}
};

// For a wait that lasts: `say` is called after so long, and again whenever that time has doubled, with
// how long the wait has taken by then. It is called on the waiting thread, without locks.
struct StallNotice {
  absl::Duration after = absl::InfiniteDuration();
  std::function<void(absl::Duration waited)> say;
};

// Cheap to copy; thread-safe. Resolved exactly once. A resolved handle means that nobody reads or
// writes the bucket's memory any more and that its result is there (see gradient_sync.h), or that
// the exchange failed.
class SyncHandle {
 public:
  // Waits until the exchange is resolved, helping where it can, and returns its status. A missed
  // deadline cancels nothing: the exchange goes on and the handle can be waited for again. Errors:
  // those of the exchange; DEADLINE_EXCEEDED, saying what is waited for.
  absl::Status Wait(Deadline deadline, const StallNotice& stall = {}) const;

  // Whether it is resolved. Looks, where the exchange may be complete without anybody having said so.
  bool done() const;

  // Says that resolved_at() will be asked, which else costs no look at the clock. Only where
  // done() did not hold.
  void KeepTime() const;

  // When the exchange was resolved, or when its time began to be kept, if that was later. KeepTime()
  // was called, and done() holds.
  MonotonicTime resolved_at() const;

 private:
  friend class SyncPromise;
  friend SyncHandle ResolvedHandle(absl::Status status);
  explicit SyncHandle(std::shared_ptr<internal::HandleState> state) : state_(std::move(state)) {}
  absl::Status Result() const;  // of what is resolved
  absl::Status WaitLonger(Deadline deadline, const StallNotice& stall) const;

  std::shared_ptr<internal::HandleState> state_;  // null: a success from the start
};

// The backend's end. Cheap to copy; thread-safe. The first Resolve() counts and later ones are
// ignored, so that a failure and a late completion may race.
class SyncPromise {
 public:
  // `what` names the exchange in deadline errors, e.g. "bucket 3 of step 12". `driver`, if any, is
  // lent the threads that wait, as long as it lives.
  explicit SyncPromise(std::string what, std::weak_ptr<SyncDriver> driver = {});

  SyncHandle handle() const { return SyncHandle(state_); }

  // `on_wait`, unless null, is what each SyncHandle::Wait() of a success still does, on the waiting
  // thread, and returns: where buckets are on a GPU, it makes the thread's compute stream wait for
  // the result. It must not wait itself, and may run when the backend is gone.
  void Resolve(absl::Status status, std::function<absl::Status()> on_wait = nullptr) const;

 private:
  friend class SyncPromiseSeries;

  std::shared_ptr<internal::HandleState> state_;
};

// The promises of an exchange that every step makes anew, one after the other. What a promise needs
// is used again when no handle refers to it any more, so that in the long run nothing is allocated
// where callers keep the handles of at most one step. Not thread-safe.
class SyncPromiseSeries {
 public:
  // As for SyncPromise, but `what` without the step, e.g. "bucket 3".
  explicit SyncPromiseSeries(const std::string& what, const std::weak_ptr<SyncDriver>& driver = {});

  // Begins the promise of `step`. The one before must be resolved.
  const SyncPromise& Begin(int64_t step);

  // The one begun last; resolved if none was.
  const SyncPromise& current() const { return promises_[current_]; }

 private:
  SyncPromise promises_[2];  // a caller may hold one step's handle until it has the next one's
  int current_ = 0;
};

// A handle that is resolved from the start. Of a success, allocates nothing.
SyncHandle ResolvedHandle(absl::Status status);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_SYNC_HANDLE_H_
