// Where Bazel put the programs that a program runs.

#ifndef GRADSYNC_TOOLS_RUNFILES_H_
#define GRADSYNC_TOOLS_RUNFILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The path of the built file `path` ("worker/worker"), which must be in the `data` of the program
// that asks. `argv0` is how that program was called. Looked for, in this order: in the runfiles
// tree that `argv0` lies in, in the one that the process was started in, in the one beside `argv0`,
// and relative to where the program itself was built.
// Errors: NOT_FOUND naming `path` and where it was looked for.
absl::StatusOr<std::string> FindRunfile(absl::string_view argv0, absl::string_view path);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_RUNFILES_H_
