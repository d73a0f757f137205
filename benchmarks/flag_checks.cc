#include "benchmarks/flag_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/flag_error.h"
#include "base/status_macros.h"

namespace gradsync {

absl::Status CheckNames(absl::string_view flag, const std::vector<std::string>& found,
                        const std::vector<std::string>& known) {
  if (found.empty()) return FlagError(flag, absl::StrJoin(known, ", "), "");
  for (const std::string& name : found) {
    if (!Contains(known, name)) {
      return FlagError(flag, absl::StrCat("some of ", absl::StrJoin(known, ", ")), name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlacements(const std::vector<std::string>& placements, bool emulated_hosts) {
  GS_RETURN_IF_ERROR(CheckNames("placement", placements, {"dedicated", "colocated", "mixed"}));
  for (const std::string& placement : placements) {
    if (placement == "dedicated" || emulated_hosts) continue;
    return FlagError("placement", "dedicated, or --bandwidth, which places servers on hosts",
                     placement);
  }
  return absl::OkStatus();
}

absl::Status CheckLinksBetweenHosts(absl::string_view flag, const std::vector<std::string>& links) {
  if (!Contains(links, "shm")) return absl::OkStatus();
  return FlagError(flag, "grpc, gloo or auto with --bandwidth, whose hosts share no memory", "shm");
}

bool Contains(const std::vector<std::string>& values, absl::string_view value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace gradsync
