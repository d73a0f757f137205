#include "sync/membership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "links/in_memory_store.h"
#include "sync/agree_on_plan.h"

namespace gradsync {
namespace {

// For a failure to be published and to end what is under way; longer than GroupError's own limit.
constexpr absl::Duration kFarewell = absl::Seconds(5);

}  // namespace

absl::StatusOr<WorkerGroup> CheckGroup(const WorkerGroup& group, absl::string_view who) {
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        who, ": expected a rank in 0..world_size-1, found ", group.rank, " of ", group.world_size));
  }
  if (group.world_size > 1 && group.store == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": expected a store with more than one rank"));
  }
  WorkerGroup complete = group;
  if (complete.store == nullptr) complete.store = NewInMemoryStore();
  return complete;
}

Membership::Membership(const WorkerGroup& group, absl::string_view name, std::function<void()> halt,
                       std::function<void(absl::Status)> end)
    : group_(group),
      side_channel_(group, name),
      halt_(std::move(halt)),
      life_(group.rank),
      ended_("the group's failure"),
      group_error_(group, [this, end = std::move(end)](absl::Status status) {
        end(status);
        ended_.Resolve(std::move(status));
      }) {}

absl::Status Membership::BeginBind(const Plan& plan, Deadline deadline) {
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(life_.BeginBind());
  if (plan.world_size() != group_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ", group_.world_size));
  }
  return AgreeOnPlan(side_channel_, plan, deadline);
}

absl::Status Membership::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  return life_.CheckUsable();
}

void Membership::Report(absl::Status status) {
  halt_();
  group_error_.Report(std::move(status));
}

void Membership::Abort(absl::Status reason) { Report(life_.ReasonOf(std::move(reason))); }

absl::Status Membership::Failed(absl::Status status) {
  Report(status);
  ended_.handle().Wait(Deadline::In(kFarewell)).IgnoreError();
  const absl::Status group = group_error_.status();
  return group.ok() ? status : group;
}

absl::Status Membership::Leave(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  const absl::Status all_here = side_channel_.Barrier(deadline);
  if (!all_here.ok()) return Failed(all_here);
  group_error_.Leave();
  life_.SetLeft();
  return absl::OkStatus();
}

void Membership::Part() {
  if (life_.left()) return;
  Report(absl::CancelledError(absl::StrCat("rank ", group_.rank, " left without Shutdown")));
  ended_.handle().Wait(Deadline::In(kFarewell)).IgnoreError();
}

}  // namespace gradsync
