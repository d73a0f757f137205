#ifndef GRADSYNC_PS_CLIENT_COUNTDOWN_H_
#define GRADSYNC_PS_CLIENT_COUNTDOWN_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "sync/sync_handle.h"

namespace gradsync {

// Resolves a handle when a number of things has happened. Shared between everything that makes one
// happen. Thread-safe, never blocks.
class Countdown {
 public:
  // `what` as in SyncPromise. Resolved at once if there is nothing to wait for.
  Countdown(std::string what, int64_t count) : promise_(std::move(what)), left_(count) {
    if (count == 0) promise_.Resolve(absl::OkStatus());
  }

  SyncHandle handle() const { return promise_.handle(); }

  void Done() {
    if (--left_ == 0) promise_.Resolve(absl::OkStatus());
  }

  // Done() may go on being called.
  void Fail(absl::Status status) { promise_.Resolve(std::move(status)); }

 private:
  const SyncPromise promise_;
  std::atomic<int64_t> left_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_CLIENT_COUNTDOWN_H_
