#include "core/group/sync_life.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status SyncLife::BeginBind() {
  if (bind_called_) return absl::FailedPreconditionError("Bind: expected one call, found a second");
  bind_called_ = true;
  return absl::OkStatus();
}

absl::Status SyncLife::CheckUsable() const {
  if (left_) return absl::CancelledError(absl::StrCat("rank ", rank_, " was shut down"));
  if (!bound_) return absl::FailedPreconditionError("expected a successful Bind() first");
  return absl::OkStatus();
}

absl::Status SyncLife::ReasonOf(absl::Status reason) const {
  if (!reason.ok()) return reason;
  return absl::CancelledError(absl::StrCat("rank ", rank_, " aborted without a reason"));
}

}  // namespace gradsync
