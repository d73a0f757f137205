// A backend's life in its group: bound once, left once, failed at most once.

#ifndef GRADSYNC_SYNC_MEMBERSHIP_H_
#define GRADSYNC_SYNC_MEMBERSHIP_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "plan/plan.h"
#include "sync/group_error.h"
#include "sync/side_channel.h"
#include "sync/sync_handle.h"
#include "sync/sync_life.h"
#include "sync/worker_group.h"

namespace gradsync {

// The group with a store, which one worker need not bring. Errors: INVALID_ARGUMENT for a rank
// outside its world, or without a store among several; `who` begins the message.
absl::StatusOr<WorkerGroup> CheckGroup(const WorkerGroup& group, absl::string_view who);

// What the rings of the host have in common besides the exchange. (Parameter servers' workers and
// NCCL's have failures of their own kinds to end, and do the same themselves, with a SyncLife of
// their own.) Make it a backend's last member: until it is destroyed its thread may call `end`,
// from the moment it is made.
//
// Report(), Abort() and status() are thread-safe; the rest is for the backend's caller, like
// GradientSync's own methods.
class Membership {
 public:
  // `name` is the side channel's. `halt` is called before the group hears of a failure of this
  // rank: from then on nothing may succeed here. On any thread, and maybe more than once; must not
  // wait. `end` is called once, on a thread of this object, with the status that this rank reports
  // from then on, and ends what is under way.
  Membership(const WorkerGroup& group, absl::string_view name, std::function<void()> halt,
             std::function<void(absl::Status)> end);
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  SideChannel& side_channel() { return side_channel_; }

  // How Bind() begins: compares the ranks' plans. Errors: FAILED_PRECONDITION for a second call and
  // where plans differ, INVALID_ARGUMENT for a plan of another world, those of SideChannel, and the
  // group's failure.
  absl::Status BeginBind(const Plan& plan, Deadline deadline);

  // Bind() has succeeded.
  void SetBound() { life_.SetBound(); }
  bool bound() const { return life_.bound(); }

  // OK between Bind() and Shutdown() while nothing has failed.
  absl::Status CheckUsable() const;

  // This rank failed. Never waits.
  void Report(absl::Status status);

  // The same, for a caller's reason, which may be OK.
  void Abort(absl::Status reason);

  // For a collective call that failed with `status`: reports it, and waits until `end` has run.
  // Returns the group's failure, of which `status` may be a consequence.
  absl::Status Failed(absl::Status status);

  // OK until `end` is about to be called.
  absl::Status status() const { return group_error_.status(); }

  // How Shutdown() begins: waits for all ranks; from then on errors are no failure of the group.
  absl::Status Leave(Deadline deadline);
  bool left() const { return life_.left(); }

  // How a backend's destructor begins: a rank that has not left has failed. Waits until the others
  // can know, for some seconds at most.
  void Part();

 private:
  const WorkerGroup group_;
  SideChannel side_channel_;
  const std::function<void()> halt_;
  SyncLife life_;
  const SyncPromise ended_;  // resolved when `end` has run
  GroupError group_error_;   // last: its threads use all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_SYNC_MEMBERSHIP_H_
