#include "core/base/temporary_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(absl::string_view prefix) {
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error) / absl::StrCat(prefix, "XXXXXX");
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a temporary folder like ", path));
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::TemporaryFolder(std::string path) : path_(std::move(path)) {}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, std::string())) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace gradsync
