// The file system as checkpoints need it, and the lock that keeps a folder to one job.

#ifndef GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_
#define GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// What a checkpoint needs of a file system: a seam, so that a test sees in which order things reach
// the disk.
// Each method blocks until the kernel has done it; only Sync() waits for the disk. Thread-safe.
// Errors: the errno's code, naming what was done and the path.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A whole file, which must be a regular one. Write() makes it, or replaces what is in it.
  virtual absl::StatusOr<std::string> Read(const std::string& path) = 0;
  virtual absl::Status Write(const std::string& path, absl::string_view bytes) = 0;

  // A new folder, and those above it that are missing; OK if it is there.
  virtual absl::Status MakeFolder(const std::string& path) = 0;

  // fsync of a file, or of a folder: then its names are on the disk. OK on a file system that
  // cannot.
  virtual absl::Status Sync(const std::string& path) = 0;

  // Replaces `to`, if that is a file, a symbolic link or an empty folder, at once.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;

  // A symbolic link at `path`, where nothing is, to `target`, which is relative to the link.
  virtual absl::Status Link(const std::string& target, const std::string& path) = 0;
  virtual absl::StatusOr<std::string> ReadLink(const std::string& path) = 0;

  // A file, a link itself, or a folder with all that is in it; OK if there is none.
  virtual absl::Status Remove(const std::string& path) = 0;

  // Names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  // Bytes that this process may still write below a folder, and to one file there; infinite where
  // the system does not say.
  struct Room {
    double free = 0;
    double largest_file = 0;
  };
  virtual absl::StatusOr<Room> RoomIn(const std::string& path) = 0;
};

// The machine's own.
std::unique_ptr<FileSystem> NewLocalFileSystem();

// Keeps a folder of checkpoints to one job at a time.

// A lock of the kernel's on DIR/.lock (flock), which ends with the process that has it, however it
// ends: what a killed job has left never keeps another from the folder. Over NFS the server holds
// the lock. The file stays; its text says who has the lock, or had it. Movable; not thread-safe.
class FolderLock {
 public:
  static constexpr char kFile[] = ".lock";  // in the folder

  // Holds nothing.
  FolderLock() = default;
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  // Makes the folder if it is not there, and does not wait. `holder` says in one line for whom the
  // lock is. Errors: FAILED_PRECONDITION with "in use by HOLDER" when another process has it;
  // UNAVAILABLE when the file system has no locks; else the errno's code, naming what cannot be
  // done.
  static absl::StatusOr<FolderLock> Take(const std::string& folder, absl::string_view holder);

 private:
  explicit FolderLock(int file) : file_(file) {}

  int file_ = -1;
};

// "process 4711 on host node3, since 2026-11-29 12:00:01": this one, for Take().
std::string ThisHolder();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_
