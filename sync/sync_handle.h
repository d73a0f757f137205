// The future of one bucket's exchange, and the promise that a backend resolves it with.

#ifndef GRADSYNC_SYNC_SYNC_HANDLE_H_
#define GRADSYNC_SYNC_SYNC_HANDLE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradsync {

namespace internal {
struct HandleState;
}  // namespace internal

// Cheap to copy; thread-safe. Resolved exactly once. A resolved handle means that nobody reads or
// writes the bucket's memory any more and that its result is there (see gradient_sync.h), or that
// the exchange failed.
class SyncHandle {
 public:
  // Waits until the exchange is resolved and returns its status. A missed deadline cancels nothing:
  // the exchange goes on and the handle can be waited for again. Errors: those of the exchange;
  // DEADLINE_EXCEEDED, saying what is waited for.
  absl::Status Wait(absl::Time deadline) const;

  bool done() const;

 private:
  friend class SyncPromise;
  explicit SyncHandle(std::shared_ptr<internal::HandleState> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::HandleState> state_;
};

// The backend's end. Cheap to copy; thread-safe. The first Resolve() counts and later ones are
// ignored, so that a failure and a late completion may race.
class SyncPromise {
 public:
  // `what` names the exchange in deadline errors, e.g. "bucket 3 of step 12".
  explicit SyncPromise(std::string what);

  SyncHandle handle() const { return SyncHandle(state_); }
  void Resolve(absl::Status status) const;

 private:
  std::shared_ptr<internal::HandleState> state_;
};

// A handle that is resolved from the start.
SyncHandle ResolvedHandle(absl::Status status);

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_SYNC_HANDLE_H_
