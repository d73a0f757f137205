#include "worker/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/utf8.h"

namespace gradsync {
namespace {

constexpr size_t kMostText = 512;

std::string TextOf(int file) {
  char text[kMostText];
  const ssize_t bytes = pread(file, text, sizeof(text), 0);
  const absl::string_view found(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  const absl::string_view line = found.substr(0, found.find('\n'));
  return line.empty() ? "another process" : AsUtf8(line, kMostText);
}

// What flock says where locks are not known, or where the server that should keep them is away.
bool HasNoLocks(int error) {
  return error == ENOLCK || error == ENOSYS || error == ENOTSUP || error == EOPNOTSUPP ||
         error == EINVAL;
}

}  // namespace

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder, absl::string_view holder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", folder));
  }
  const std::string path = absl::StrCat(folder, "/", kFile);
  FolderLock lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (lock.file_ < 0 && errno == ELOOP) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a file of its own at ", path, ", found a symbolic link"));
  }
  if (lock.file_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  int locked;
  do {
    locked = flock(lock.file_, LOCK_EX | LOCK_NB);
  } while (locked != 0 && errno == EINTR);
  if (locked != 0 && (errno == EWOULDBLOCK || errno == EACCES)) {
    return absl::FailedPreconditionError(absl::StrCat("in use by ", TextOf(lock.file_)));
  }
  if (locked != 0 && HasNoLocks(errno)) {
    return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", std::strerror(errno)));
  }
  if (locked != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
  const std::string text = absl::StrCat(holder, "\n");
  const ssize_t bytes = static_cast<ssize_t>(text.size());
  if (ftruncate(lock.file_, 0) != 0 || pwrite(lock.file_, text.data(), text.size(), 0) != bytes) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return lock;
}

std::string ThisHolder() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("process ", getpid(), " on host ", host, ", since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone()));
}

}  // namespace gradsync
