// A job's key: a text that its processes share and others do not know. It keeps out processes that
// have lost their way (the same command started twice, a client of another job), not those who read
// the network: that takes TLS.

#ifndef GRADSYNC_CORE_BASE_JOB_KEY_H_
#define GRADSYNC_CORE_BASE_JOB_KEY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The variable of the environment in which a launcher may give all processes of a job their key.
constexpr char kJobKeyVariable[] = "GRADSYNC_JOB_KEY";

// 128 random bits of the kernel, as 32 hexadecimal digits. Thread-safe.
std::string NewJobKey();

// Whether `key` is empty, or has at most 128 characters, letters, digits, "-" and "_" only.
// Errors: INVALID_ARGUMENT that names `what`, without the key.
absl::Status CheckJobKey(absl::string_view what, absl::string_view key);

// Whether two texts are equal, in a time that depends on their lengths alone.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_JOB_KEY_H_
