#ifndef GRADSYNC_CORE_PROGRAM_COMPILER_NAME_H_
#define GRADSYNC_CORE_PROGRAM_COMPILER_NAME_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace gradsync {

// "GCC 12.2.0", of the file that asks. Thread-safe.
inline std::string CompilerName() {
#if defined(__clang__)
  return absl::StrCat("clang ", __clang_version__);
#else
  return absl::StrCat("GCC ", __VERSION__);
#endif
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_COMPILER_NAME_H_
