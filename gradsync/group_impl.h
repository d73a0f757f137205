// What a group, and what is made with it, share within the library.

#ifndef GRADSYNC_GRADSYNC_GROUP_IMPL_H_
#define GRADSYNC_GRADSYNC_GROUP_IMPL_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/kinds.h"
#include "gradsync/group.h"
#include "gradsync/join/adapters.h"
#include "gradsync/join/member.h"
#include "gradsync/status.h"

namespace gradsync {

Status ToStatus(const absl::Status& status);
absl::Status FromStatus(const Status& status);

// What programs have that link LibTorch: for each Join() from then on. Called by
// gradsync/ddp.cc before main(), so that whoever links that need not say so. Returns true.
bool SetAdapters(Adapters (*adapters)());

class Group::Impl {
 public:
  Impl(std::unique_ptr<Member> member, absl::Duration timeout);
  ~Impl();

  Member& member() const { return *member_; }
  GradientSync& sync() const { return member_->sync(); }
  absl::Duration timeout() const { return timeout_; }
  Deadline deadline() const { return Deadline::In(timeout_); }

  // FAILED_PRECONDITION for the second caller: a group exchanges one model's gradients;
  // INVALID_ARGUMENT where they are updated elsewhere than the caller can have it.
  absl::Status TakeSync(UpdateSite site = UpdateSite::kWorker);

  // The group's collectives, which the first call opens: it is collective, with the errors of
  // OpenCollectives().
  absl::StatusOr<GroupCollectives*> CollectiveCalls();

  // Whether a step is under way that others wait for: a group that goes then fails.
  void SetInStep(bool in_step) { in_step_ = in_step; }
  bool in_step() const { return in_step_; }

  // As Group::Fail() and Group::Leave().
  absl::Status Fail(const absl::Status& reason);
  absl::Status Leave();

  bool over() const { return over_; }  // left, or failed from here

 private:
  absl::Status BindNothing();

  const std::unique_ptr<Member> member_;
  const absl::Duration timeout_;
  bool taken_ = false;
  bool in_step_ = false;
  std::atomic<bool> over_{false};
  std::unique_ptr<GroupCollectives> collectives_;  // null until they are asked for
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_GROUP_IMPL_H_
