#ifndef GRADSYNC_BENCHMARKS_FLAG_CHECKS_H_
#define GRADSYNC_BENCHMARKS_FLAG_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Checks of flags that several benchmarks have. Thread-safe.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came (base/flag_error.h).

// At least one name, all of them known.
absl::Status CheckNames(absl::string_view flag, const std::vector<std::string>& found,
                        const std::vector<std::string>& known);

// Placements are known names, and ones that can be had: on this host alone, where all processes
// share it, only "dedicated", which then says nothing.
absl::Status CheckPlacements(const std::vector<std::string>& placements, bool emulated_hosts);

// Shared memory is no network: links that cannot be had between emulated hosts.
absl::Status CheckLinksBetweenHosts(absl::string_view flag, const std::vector<std::string>& links);

bool Contains(const std::vector<std::string>& values, absl::string_view value);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_FLAG_CHECKS_H_
