#include "core/base/check_writable.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/write_file.h"

namespace gradsync {
namespace {

absl::Status RefuseFor(absl::string_view flag, absl::string_view what, const std::string& path,
                       absl::string_view why) {
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": expected a ", what,
                                                 " that can be written, found ", path, ": ", why));
}

}  // namespace

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  return RefuseFor(flag, "file", path, WhyNotWritable(path));
}

absl::Status CheckFolderWritable(absl::string_view flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return RefuseFor(flag, "folder", path, error.message());
  return RefuseFor(flag, "folder", path, WhyNotWritable(absl::StrCat(path, "/.probe")));
}

}  // namespace gradsync
