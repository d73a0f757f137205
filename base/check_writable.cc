#include "base/check_writable.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag,
                                                   ": expected a file that can be written, found ",
                                                   path, ": ", std::strerror(errno)));
  }
  std::fclose(file);
  return absl::OkStatus();
}

}  // namespace gradsync
