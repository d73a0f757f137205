#ifndef GRADSYNC_BASE_CHECK_WRITABLE_H_
#define GRADSYNC_BASE_CHECK_WRITABLE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Whether the file that `flag` names can be written: found before a job, and not after it. Makes an
// empty one where there is none. Errors: INVALID_ARGUMENT naming flag, path and why.
absl::Status CheckWritable(absl::string_view flag, const std::string& path);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_CHECK_WRITABLE_H_
