#ifndef GRADSYNC_CORE_BASE_WRITE_FILE_H_
#define GRADSYNC_CORE_BASE_WRITE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Writes `content` to `path` by way of a temporary file beside it and a rename, so that readers see the old file or the new
// one, whole; also after the machine has lost its power, as far as the file system allows. A link stays, and what it names is
// replaced. A device, a pipe, what a process has open (/dev/stdout) or what else is no ordinary file at `path` is written to,
// not replaced, by OpenInPlace(); the reader of a pipe may take nothing for a minute. Errors: the errno's code, naming the path.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content);

// Why WriteFileAtomically() cannot write to `path`, as far as that shows without a change to what is there: a file beside it is
// written and removed. Empty if it can. A pipe that somebody reads is kept open, as its reader would otherwise see its end, until
// it is written to.
std::string WhyNotWritable(const std::string& path);

// Opens `path` to write to it as it is, without waiting for the reader of a pipe; one that WhyNotWritable() keeps open is taken
// over. `flags` are more of open()'s. The caller closes the file, which does not block. /dev/null and /dev/full are tried by a
// line feed. Thread-safe. Errors: the errno's code; the message says why, and not the path.
absl::StatusOr<int> OpenInPlace(const std::string& path, int flags);

// The path, without links, of the file that WriteFileAtomically() would put in its place or replace at `path`; empty where it
// would write to what is there.
std::string FileReplacedAt(const std::string& path);

// `path` itself when it is absolute or `directory` is empty, otherwise `path` seen from `directory`.
std::string ResolvePath(const std::string& path, const std::string& directory);

// Whether WriteFileAtomically() will be able to write the file that `flag` names: found before a job,
// and not after it. Leaves nothing behind and does not touch what is there; a pipe stays open for it
// (WhyNotWritable()). OK for an empty path.
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

#endif  // GRADSYNC_CORE_BASE_WRITE_FILE_H_
