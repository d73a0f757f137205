#include "sync/agree_on_plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {

absl::Status AgreeOnPlan(SideChannel& side_channel, const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints,
                      side_channel.AllGather(plan.fingerprint(), deadline));
  for (size_t rank = 1; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] == fingerprints[0]) continue;
    // Descriptions are long, so they travel only when there is a difference to explain; every rank
    // comes here then.
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> descriptions,
                        side_channel.AllGather(plan.Describe(), deadline));
    return absl::FailedPreconditionError(
        absl::StrCat("plans differ: ", side_channel.Name(0), " has ", fingerprints[0], ", ",
                     side_channel.Name(rank), " has ", fingerprints[rank], ": ",
                     FirstDifference(descriptions[0], descriptions[rank])));
  }
  return absl::OkStatus();
}

absl::Status AgreeOnOptions(SideChannel& side_channel, absl::string_view name,
                            absl::string_view options, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel.AllGather(options, deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " options differ: ", side_channel.Name(0), " has ", all[0], "; ",
                     side_channel.Name(rank), " has ", all[rank]));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
