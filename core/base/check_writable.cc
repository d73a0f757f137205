#include "core/base/check_writable.h"

#include <filesystem>
#include <map>
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

absl::Status CheckDistinct(const std::vector<NamedFile>& outputs,
                           const std::vector<NamedFile>& inputs) {
  std::map<std::string, absl::string_view> flags;  // by file
  for (const NamedFile& input : inputs) {
    if (!input.path.empty()) flags.emplace(FileReplacedAt(input.path), input.flag);
  }
  for (const NamedFile& output : outputs) {
    const std::string file = output.path.empty() ? "" : FileReplacedAt(output.path);
    if (file.empty()) continue;
    const auto [other, is_new] = flags.emplace(file, output.flag);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", output.flag,
                                                   ": expected another file than --", other->second,
                                                   " names, found ", output.path));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
