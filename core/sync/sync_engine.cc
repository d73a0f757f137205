#include "core/sync/sync_engine.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/sync/agree_on_plan.h"

namespace gradsync {

absl::Status SyncEngine::Agree(const Plan& plan, Deadline deadline) {
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel(), plan, deadline));
  const std::string terms = Terms();
  return AgreeOnOptions(side_channel(), host_.name(),
                        absl::StrCat(terms, terms.empty() ? "" : ", ", "the update at the ",
                                     update_site() == UpdateSite::kOwner ? "owners" : "workers"),
                        deadline);
}

namespace {

absl::Status NoShards() {
  return absl::FailedPreconditionError("expected owners that keep parameters, found none");
}

}  // namespace

absl::StatusOr<SyncHandle> SyncEngine::Gather(int) { return NoShards(); }

absl::Status SyncEngine::StoreParameters(int, Deadline) { return NoShards(); }

}  // namespace gradsync
