#ifndef GRADSYNC_BENCHMARKS_RECORDS_OUT_FOLDER_H_
#define GRADSYNC_BENCHMARKS_RECORDS_OUT_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The folder that --out says, `flag` in its words and `path` as this process reaches it: existing
// and writable, made if need be. Errors: INVALID_ARGUMENT naming --out.
absl::StatusOr<std::string> OpenOutFolder(absl::string_view flag, const std::string& path);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_OUT_FOLDER_H_
