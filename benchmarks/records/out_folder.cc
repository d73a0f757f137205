#include "benchmarks/records/out_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<std::string> OpenOutFolder(absl::string_view flag, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return path;
  return absl::InvalidArgumentError(absl::StrCat(
      "--out: expected a folder that can be written, found \"", flag, "\": ", error.message()));
}

}  // namespace gradsync
