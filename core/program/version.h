#ifndef GRADSYNC_CORE_PROGRAM_VERSION_H_
#define GRADSYNC_CORE_PROGRAM_VERSION_H_

#include <string>

#include "absl/strings/string_view.h"

namespace gradsync {

// What --version of every program prints, a line each, with an end of line after the last:
//
//   worker of gradsync 0.1.0
//   commit 1d2c3b4                 unknown, unless built with --config=stamp
//   LibTorch 1.13.0                not for programs without LibTorch: `libtorch` is empty
//   gRPC 1.51.1
//   Protocol Buffers 3.21.12
//   compiler GCC 12.2.0
//
// Thread-safe.
std::string VersionText(absl::string_view program, absl::string_view libtorch = "");

// "gradsync 0.1.0, commit 1d2c3b4": for records. Thread-safe.
std::string VersionName();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_VERSION_H_
