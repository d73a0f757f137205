#include "worker/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/base/regular_file.h"
#include "core/base/status_macros.h"

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

}  // namespace

std::unique_ptr<FileSystem> NewLocalFileSystem() { return std::make_unique<LocalFileSystem>(); }

}  // namespace gradsync
