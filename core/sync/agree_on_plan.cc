#include "core/sync/agree_on_plan.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace gradsync {

namespace {

// The first line in which the texts of ranks 0 and `other` differ, of all ranks' `text`. These are as long
// as the model has parameters, so they are compared by hashes of their beginnings, and only that line
// travels. Collective.
absl::StatusOr<std::string> FirstDifferentLine(SideChannel& side_channel, absl::string_view text,
                                               size_t other, Deadline deadline) {
  constexpr size_t kMostOfALine = 1000;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const auto line = [&](size_t number) {
    return number < lines.size() ? lines[number] : absl::string_view("(nothing)");
  };
  const auto begins_alike = [&](size_t count) -> absl::StatusOr<bool> {
    const size_t end = count < lines.size() ? lines[count].data() - text.data() : text.size();
    const std::string own =
        absl::StrCat(std::min(count, lines.size()), " ", Sha256Hex(text.substr(0, end)));
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel.AllGather(own, deadline));
    return all[0] == all[other];
  };
  size_t alike = 0;
  size_t step = 1;
  for (bool same = true; same; step *= 2) {  // they differ, so some beginning does
    GS_ASSIGN_OR_RETURN(same, begins_alike(alike + step));
    if (same) alike += step;
  }
  for (step /= 2; step > 1; step /= 2) {
    GS_ASSIGN_OR_RETURN(const bool same, begins_alike(alike + step / 2));
    if (same) alike += step / 2;
  }
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel.AllGather(line(alike).substr(0, kMostOfALine), deadline));
  return absl::StrCat("\"", all[0], "\" against \"", all[other], "\"");
}

}  // namespace

absl::Status AgreeOnPlan(SideChannel& side_channel, const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints,
                      side_channel.AllGather(plan.fingerprint(), deadline));
  for (size_t rank = 1; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] == fingerprints[0]) continue;
    // Every rank comes here then.
    GS_ASSIGN_OR_RETURN(const std::string difference,
                        FirstDifferentLine(side_channel, plan.Describe(), rank, deadline));
    return absl::FailedPreconditionError(
        absl::StrCat("plans differ: ", side_channel.Name(0), " has ", fingerprints[0], ", ",
                     side_channel.Name(rank), " has ", fingerprints[rank], ": ", difference));
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
