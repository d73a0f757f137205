#ifndef GRADSYNC_CORE_BASE_FLAG_ERROR_H_
#define GRADSYNC_CORE_BASE_FLAG_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// How every program words a flag whose value is wrong: INVALID_ARGUMENT, `--flag: expected this,
// found "that"`. Thread-safe.
inline absl::Status FlagError(absl::string_view flag, absl::string_view expected,
                              absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected ", expected, ", found \"", found, "\""));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FLAG_ERROR_H_
