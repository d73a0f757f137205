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
#include "absl/time/time.h"

namespace gradsync {

// Values and checks of flags that several benchmarks have. Thread-safe.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came
// (core/base/errors.h).

// At least one name, all of them known.
absl::Status CheckNames(absl::string_view flag, const std::vector<std::string>& found,
                        const std::vector<std::string>& known);

// Numbers that several programs have. `CheckTimeout` is of --timeout, `CheckConnections` of
// --connections, `CheckBandwidths` of --bandwidth.
absl::Status CheckAtLeast(absl::string_view flag, int64_t least, int64_t found);
absl::Status CheckTimeout(absl::Duration timeout);
absl::Status CheckConnections(int connections);
absl::Status CheckBandwidths(const std::vector<std::string>& bandwidths);

// Samples per worker, from --batch_size and --global_batch_size, of which at most one is given; 0:
// neither.
absl::StatusOr<int64_t> BatchPerWorker(int64_t batch_size, int64_t global_batch_size, int workers);

// What is wrong with a flag, in the words of whoever read its value.
absl::Status Named(absl::string_view flag, const absl::Status& status);

// At least one number of processes, each from 1 to `most`, in their order.
constexpr int kNoMost = std::numeric_limits<int>::max();
absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag,
                                             const std::vector<std::string>& texts, int most);

// Bytes, at least 1 (core/program/byte_sizes.h says how they are written).
absl::StatusOr<int64_t> ParseSize(absl::string_view flag, absl::string_view text);

// The value of --chunk_bytes, as core/plan/plan.h takes it: 0 (automatic) or a multiple of 64
// bytes.
absl::StatusOr<int64_t> ParseChunkBytes(absl::string_view text);

template <typename T, typename Value>
bool Contains(const std::vector<T>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_FLAG_CHECKS_H_
