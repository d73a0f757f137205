#include "base/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) {
      const int error = errno;
      std::remove(temporary.c_str());
      return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

std::string ResolvePath(const std::string& path, const std::string& directory) {
  if (path.empty() || directory.empty() || absl::StartsWith(path, "/")) return path;
  return absl::StrCat(directory, "/", path);
}

}  // namespace gradsync
