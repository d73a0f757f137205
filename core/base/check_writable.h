#ifndef GRADSYNC_CORE_BASE_CHECK_WRITABLE_H_
#define GRADSYNC_CORE_BASE_CHECK_WRITABLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Whether WriteFileAtomically() will be able to write the file that `flag` names: found before a job,
// and not after it. Leaves nothing behind and does not touch what is there; a pipe stays open for it
// (core/base/write_file.h). OK for an empty path.
// Errors: INVALID_ARGUMENT naming flag, path and why.
absl::Status CheckWritable(absl::string_view flag, const std::string& path);

// The same of a folder for files of any name, which is made if it is not there.
absl::Status CheckFolderWritable(absl::string_view flag, const std::string& path);

struct NamedFile {
  absl::string_view flag;
  std::string path;  // empty: none
};

// That each of `outputs` is a file of its own, and none that the job reads, of `inputs`. Devices, pipes and
// what the process has open (/dev/stdout) take the output of several. Errors: INVALID_ARGUMENT naming
// both flags and the path.
absl::Status CheckDistinct(const std::vector<NamedFile>& outputs,
                           const std::vector<NamedFile>& inputs);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_CHECK_WRITABLE_H_
