#ifndef GRADSYNC_CORE_BASE_ANNOTATE_H_
#define GRADSYNC_CORE_BASE_ANNOTATE_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The same error, of whom or what: "who: message". `status` is not OK.
inline absl::Status Annotate(absl::string_view who, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(who, ": ", status.message()));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_ANNOTATE_H_
