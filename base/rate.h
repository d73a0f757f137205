#ifndef GRADSYNC_BASE_RATE_H_
#define GRADSYNC_BASE_RATE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Bytes per second from "400mbit", "10gbit" or "100kbit" (powers of 1000, as tc has them; case does
// not matter), as --bandwidth has it. Thread-safe.
// Errors: INVALID_ARGUMENT saying what was found.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_RATE_H_
