// What every backend answers to calls before Bind(), after Shutdown(), and made twice.

#ifndef GRADSYNC_CORE_GROUP_SYNC_LIFE_H_
#define GRADSYNC_CORE_GROUP_SYNC_LIFE_H_

#include "absl/status/status.h"

namespace gradsync {

// The life of one GradientSync in the eyes of its caller: bound once, left once. Failures are
// somebody else's, who asks them first. Not thread-safe, but for ReasonOf(), like GradientSync's
// own methods.
class SyncLife {
 public:
  // `rank` in the job.
  explicit SyncLife(int rank) : rank_(rank) {}

  // How Bind() begins. Errors: FAILED_PRECONDITION for a second call, also after a failed one.
  absl::Status BeginBind();

  // Bind() has succeeded.
  void SetBound() { bound_ = true; }
  bool bound() const { return bound_; }

  // Shutdown() has succeeded as far as the group is concerned.
  void SetLeft() { left_ = true; }
  bool left() const { return left_; }

  // How every other call begins, but a second Shutdown(), which does nothing. Errors:
  // FAILED_PRECONDITION before a successful Bind(); CANCELLED after Shutdown().
  absl::Status CheckUsable() const;

  // What Abort(reason) publishes: `reason`, or CANCELLED in the place of OK, which says nothing.
  absl::Status ReasonOf(absl::Status reason) const;

 private:
  const int rank_;
  bool bind_called_ = false;
  bool bound_ = false;
  bool left_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_SYNC_LIFE_H_
