#ifndef GRADSYNC_CORE_BASE_RATE_H_
#define GRADSYNC_CORE_BASE_RATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Bytes per second from "400mbit", "10gbit" or "100kbit", or as well "400Mbps", "10Gbps" or
// "100kbps": bits, by powers of 1000; case does not matter. As --bandwidth has it. Thread-safe.
// Errors: INVALID_ARGUMENT saying what was found.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

// The first of these spellings, by which records and reports tell bandwidths apart: "10Gbps" is
// "10gbit". A text that is no bandwidth stays what it is. Thread-safe.
std::string BandwidthName(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_RATE_H_
