// Sizes and rates as people write them on command lines. Pure functions, thread-safe.

#ifndef GRADSYNC_CORE_PROGRAM_BYTE_SIZES_H_
#define GRADSYNC_CORE_PROGRAM_BYTE_SIZES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// "4096", "4KiB", "25MiB", "1GiB" by powers of 1024; "102.4MB", "1kB", "1GB" by powers of 1000. A
// bare letter, "8K", "128M", "1G", is a power of 1024, as in nccl-tests. Case does not matter.
// Errors: INVALID_ARGUMENT saying what was found when it is no such size, not positive, no whole
// number of bytes, or above 1 TiB.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// The shortest of the spellings above that is exact: 4096 is "4KiB", 102400000 "102.4MB", 4097
// "4097".
std::string FormatBytes(int64_t bytes);

// A flag's value: as in `ABSL_FLAG(gradsync::ByteSize, bucket_bytes, ...)`. It takes each of the
// spellings above, and 0, for which most such flags have a meaning.
struct ByteSize {
  int64_t bytes = 0;
};
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

// `first`, `first * factor`, ... up to `last`; nccl-tests' -b, -e and -f.
// Errors: INVALID_ARGUMENT when first > last or the factor is below 2.
absl::StatusOr<std::vector<int64_t>> GeometricSizes(int64_t first, int64_t last, int64_t factor);

// Bytes per second from "400mbit", "10gbit" or "100kbit", or as well "400Mbps", "10Gbps" or
// "100kbps": bits, by powers of 1000; case does not matter. As --bandwidth has it. Thread-safe.
// Errors: INVALID_ARGUMENT saying what was found.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

// The first of these spellings, by which records and reports tell bandwidths apart: "10Gbps" is
// "10gbit". A text that is no bandwidth stays what it is. Thread-safe.
std::string BandwidthName(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_BYTE_SIZES_H_
