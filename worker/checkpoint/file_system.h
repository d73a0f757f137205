// What a checkpoint needs of a file system: a seam, so that a test sees in which order things reach
// the disk.

#ifndef GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_
#define GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

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

  // fsync of a file, or of a folder: then its names are on the disk. OK on a file system that cannot.
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

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_FILE_SYSTEM_H_
