#include "worker/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/program/regular_file.h"

namespace gradsync {
namespace {

absl::Status Failed(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
}

absl::Status Failed(const std::error_code& error, absl::string_view what, const std::string& path) {
  return error ? Failed(error.value(), what, path) : absl::OkStatus();
}

// What fsync says of a file system that has no such thing, mostly of folders: FUSE, SMB, 9p. There is
// nothing more that a writer could do.
bool CannotSync(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP || error == EOPNOTSUPP;
}

// An open file, closed at the end of its scope.
class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // Some file systems say only here that a write failed.
  int Close() {
    const int result = close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

class LocalFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> bytes = ReadRegularFile(path);
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(),
                          absl::StrCat("cannot read ", path, ": ", bytes.status().message()));
    }
    return bytes;
  }

  absl::Status Write(const std::string& path, absl::string_view bytes) override {
    File file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file.is_open()) return Failed(errno, "write", path);
    while (!bytes.empty()) {
      const ssize_t now = write(file.fd(), bytes.data(), bytes.size());
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) return Failed(errno, "write", path);
      bytes.remove_prefix(static_cast<size_t>(now));
    }
    return file.Close() == 0 ? absl::OkStatus() : Failed(errno, "write", path);
  }

  absl::Status MakeFolder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    return Failed(error, "make the folder", path);
  }

  absl::Status Sync(const std::string& path) override {
    const File file(path, O_RDONLY);
    if (!file.is_open()) return Failed(errno, "sync", path);
    if (fsync(file.fd()) == 0 || CannotSync(errno)) return absl::OkStatus();
    return Failed(errno, "sync", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      return Failed(errno, absl::StrCat("rename ", from, " to"), to);
    }
    return absl::OkStatus();
  }

  absl::Status Link(const std::string& target, const std::string& path) override {
    if (symlink(target.c_str(), path.c_str()) != 0) return Failed(errno, "make the link", path);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadLink(const std::string& path) override {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    GS_RETURN_IF_ERROR(Failed(error, "read the link", path));
    return target.string();
  }

  absl::Status Remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return Failed(error, "remove", path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(path, error);
    while (!error && entry != std::filesystem::directory_iterator()) {
      names.push_back(entry->path().filename().string());
      entry.increment(error);
    }
    GS_RETURN_IF_ERROR(Failed(error, "list", path));
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<Room> RoomIn(const std::string& path) override {
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    struct statvfs disk;
    if (statvfs(path.c_str(), &disk) != 0) return Failed(errno, "find the room in", path);
    Room room;
    // A file system that has no number says 0 of 0.
    room.free = disk.f_blocks == 0
                    ? kUnknown
                    : static_cast<double>(geteuid() == 0 ? disk.f_bfree : disk.f_bavail) *
                          static_cast<double>(disk.f_frsize);
    struct rlimit file;
    const bool limited = getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY;
    room.largest_file = limited ? static_cast<double>(file.rlim_cur) : kUnknown;
    return room;
  }
};

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

std::unique_ptr<FileSystem> NewLocalFileSystem() { return std::make_unique<LocalFileSystem>(); }

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
