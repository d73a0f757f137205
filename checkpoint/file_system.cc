#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

absl::Status Failed(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what, " ", path));
}

absl::Status Failed(const std::error_code& error, absl::string_view what, const std::string& path) {
  return error ? Failed(error.value(), what, path) : absl::OkStatus();
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
    if (!file.is_open() || fsync(file.fd()) != 0) return Failed(errno, "sync", path);
    return absl::OkStatus();
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
};

}  // namespace

std::unique_ptr<FileSystem> NewLocalFileSystem() { return std::make_unique<LocalFileSystem>(); }

}  // namespace gradsync
