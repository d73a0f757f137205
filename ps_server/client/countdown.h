#ifndef GRADSYNC_PS_SERVER_CLIENT_COUNTDOWN_H_
#define GRADSYNC_PS_SERVER_CLIENT_COUNTDOWN_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/group/sync_handle.h"

namespace gradsync {

// Resolves a handle when a number of things has happened. Shared between everything that makes one
// happen. Thread-safe, never blocks; but Restart() is for when nothing else is called.
class Countdown {
 public:
  // `what` as in SyncPromiseSeries. Resolved, until the first Restart().
  explicit Countdown(const std::string& what) : promises_(what) {}

  // Resolved at once if there is nothing to wait for.
  Countdown(const std::string& what, int64_t count) : Countdown(what) { Restart(-1, count); }

  // The same for another step (-1: none); allocates nothing. What was counted down to before has
  // happened.
  void Restart(int64_t step, int64_t count) {
    left_ = count;
    promises_.Begin(step);
    if (count == 0) Resolve(absl::OkStatus());
  }

  SyncHandle handle() const { return promises_.current().handle(); }

  void Done() {
    if (--left_ == 0) Resolve(absl::OkStatus());
  }

  // Done() may go on being called.
  void Fail(absl::Status status) { Resolve(std::move(status)); }

 private:
  void Resolve(absl::Status status) {
    const SyncPromise promise = promises_.current();  // whoever is woken may restart
    promise.Resolve(std::move(status));
  }

  SyncPromiseSeries promises_;
  std::atomic<int64_t> left_{0};
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_COUNTDOWN_H_
