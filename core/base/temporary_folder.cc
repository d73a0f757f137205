#include "core/base/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_main.h"

namespace gradsync {

namespace {

struct Place {
  std::string folder;
  std::string variable;
  std::string found;  // what the variable says
};

// As std::filesystem::temp_directory_path(), to which an empty variable is an error.
Place PlaceForFolders() {
  for (const char* const variable : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const std::string folder = EnvironmentVariable(variable).value_or("");
    if (!folder.empty()) return {folder, variable, absl::StrCat("\"", folder, "\"")};
  }
  return {"/tmp", "TMPDIR", "it unset and \"/tmp\""};
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(absl::string_view prefix) {
  const Place place = PlaceForFolders();
  std::error_code ignored;  // mkdtemp() says it again
  const std::filesystem::path folder = std::filesystem::absolute(place.folder, ignored);
  std::string path = folder / absl::StrCat(prefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    const int error = errno;
    return absl::InvalidArgumentError(absl::StrCat(place.variable,
                                                   ": expected a folder that takes files, found ",
                                                   place.found, ": ", std::strerror(error)));
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
