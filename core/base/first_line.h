#ifndef GRADSYNC_CORE_BASE_FIRST_LINE_H_
#define GRADSYNC_CORE_BASE_FIRST_LINE_H_

#include "absl/strings/string_view.h"

namespace gradsync {

// `text` up to its first line break: what an exception of LibTorch says, without the stack frames
// below it. A view of `text`. Pure.
inline absl::string_view FirstLine(absl::string_view text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FIRST_LINE_H_
