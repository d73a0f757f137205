#ifndef GRADSYNC_BENCHMARKS_OPTIONS_FLAG_CHECKS_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_FLAG_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Values and checks of flags that several benchmarks have. Thread-safe.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came (base/flag_error.h).

// At least one name, all of them known.
absl::Status CheckNames(absl::string_view flag, const std::vector<std::string>& found,
                        const std::vector<std::string>& known);

// Placements are known names, and ones that can be had: on this host alone, where all processes
// share it, only "dedicated", which then says nothing.
absl::Status CheckPlacements(const std::vector<std::string>& placements, bool emulated_hosts);

// Says which --servers a placement allows; `workers` names the flag that limits them.
absl::Status NotPlaced(absl::string_view placement, absl::string_view workers);

// Each placement that was asked for is the `placement` of one of `cases` at least, else
// NotPlaced().
template <typename Case>
absl::Status CheckPlaced(const std::vector<std::string>& placements, const std::vector<Case>& cases,
                         absl::string_view workers) {
  for (const std::string& placement : placements) {
    const bool found = std::any_of(cases.begin(), cases.end(),
                                   [&](const Case& c) { return c.placement == placement; });
    if (!found) return NotPlaced(placement, workers);
  }
  return absl::OkStatus();
}

// Shared memory is no network, and GPUs of one host talk past the emulated one: links that cannot
// be had between emulated hosts.
absl::Status CheckLinksBetweenHosts(absl::string_view flag, const std::vector<std::string>& links);

// Values of --consistency (plan/consistency.h), at least one; ones that wait for less than all only
// where the other lists have what they need: ps that updates at the owner, over gRPC, uncompressed.
absl::Status CheckConsistencies(const std::vector<std::string>& consistencies,
                                const std::vector<std::string>& topologies,
                                const std::vector<std::string>& updates,
                                const std::vector<std::string>& links,
                                const std::vector<std::string>& compressions);

// What is wrong with a flag, in the words of whoever read its value.
absl::Status Named(absl::string_view flag, const absl::Status& status);

// At least one number of processes, each from 1 to `most`, in their order.
constexpr int kNoMost = std::numeric_limits<int>::max();
absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag,
                                             const std::vector<std::string>& texts, int most);

// Bytes, at least 1 (benchmarks/options/byte_sizes.h says how they are written).
absl::StatusOr<int64_t> ParseSize(absl::string_view flag, absl::string_view text);

// The value of --chunk_bytes, as plan/plan.h takes it: 0 (automatic) or a multiple of 64 bytes.
absl::StatusOr<int64_t> ParseChunkBytes(absl::string_view text);

bool Contains(const std::vector<std::string>& values, absl::string_view value);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_FLAG_CHECKS_H_
