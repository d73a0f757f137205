#include "core/base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace gradsync {

namespace {

constexpr int kMostLinks = 40;  // as the kernel has it

absl::Status Failed(const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

// Opens, writes, and with `sync` waits for the disk. Leaves errno where it fails.
bool WriteTo(const std::string& path, int flags, absl::string_view content, bool sync) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (file < 0) return false;
  bool good = true;
  while (good && !content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      good = false;
    }
  }
  // Some file systems cannot, and say so.
  if (good && sync)
    good = fsync(file) == 0 || errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
  const int error = errno;
  if (close(file) != 0 && good) return false;
  errno = error;
  return good;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// So that the new name is on the disk too. Not all folders can be opened, and not all file systems
// sync them; the file is whole in any case.
void SyncFolderOf(const std::string& path) {
  const int file = open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

// The file that is to be replaced where `path` is a link; nothing where the link is one to what a
// process has open, such as /dev/stdout: a new file of that name would be another one.
absl::optional<std::string> FollowLinks(std::string path) {
  struct stat processes;
  struct stat link;
  const bool known = stat("/proc", &processes) == 0;
  char target[PATH_MAX];
  for (int links = 0; links < kMostLinks; ++links) {
    if (lstat(path.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return path;
    if (known && link.st_dev == processes.st_dev) return absl::nullopt;
    const ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
    if (bytes < 0) return path;
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    path = ResolvePath(std::string(target, static_cast<size_t>(bytes)), folder);
  }
  return path;
}

// The file that a new one takes the place of, or nothing where `wanted` is written to as it is.
absl::optional<std::string> FileToReplace(const std::string& wanted) {
  struct stat found;
  const absl::optional<std::string> target = FollowLinks(wanted);
  const bool device = stat(wanted.c_str(), &found) == 0 && !S_ISREG(found.st_mode);
  return device ? absl::nullopt : target;
}

// Whether a rename over `path` is refused although its folder can be written, as in /tmp.
bool IsKeptByAnother(const std::string& path) {
  struct stat file;
  struct stat folder;
  if (lstat(path.c_str(), &file) != 0 || stat(FolderOf(path).c_str(), &folder) != 0) return false;
  return (folder.st_mode & S_ISVTX) != 0 && geteuid() != 0 && file.st_uid != geteuid() &&
         folder.st_uid != geteuid();
}

std::string TemporaryBeside(const std::string& path) {
  return absl::StrCat(path, ".", getpid(), ".tmp");
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& wanted, absl::string_view content) {
  const absl::optional<std::string> path = FileToReplace(wanted);
  if (!path.has_value()) {
    return WriteTo(wanted, O_APPEND, content, /*sync=*/false) ? absl::OkStatus() : Failed(wanted);
  }
  const std::string temporary = TemporaryBeside(*path);
  if (!WriteTo(temporary, O_CREAT | O_TRUNC, content, /*sync=*/true) ||
      std::rename(temporary.c_str(), path->c_str()) != 0) {
    const absl::Status failed = Failed(*path);
    std::remove(temporary.c_str());
    return failed;
  }
  SyncFolderOf(*path);
  return absl::OkStatus();
}

std::string WhyNotWritable(const std::string& wanted) {
  struct stat found;
  if (stat(wanted.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return std::strerror(EISDIR);
  const absl::optional<std::string> path = FileToReplace(wanted);
  // A pipe is not opened: that would wait for its reader.
  if (!path.has_value()) return access(wanted.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  if (IsKeptByAnother(*path)) return "a file of another user's in a folder with the sticky bit";
  const std::string temporary = TemporaryBeside(*path);
  const bool written = WriteTo(temporary, O_CREAT | O_TRUNC, "probe", /*sync=*/false);
  const std::string why = written ? "" : std::strerror(errno);
  std::remove(temporary.c_str());
  return why;
}

std::string ResolvePath(const std::string& path, const std::string& directory) {
  if (path.empty() || directory.empty() || absl::StartsWith(path, "/")) return path;
  return absl::StrCat(directory, "/", path);
}

}  // namespace gradsync
