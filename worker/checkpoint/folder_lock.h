// Keeps a folder of checkpoints to one job at a time.

#ifndef GRADSYNC_WORKER_CHECKPOINT_FOLDER_LOCK_H_
#define GRADSYNC_WORKER_CHECKPOINT_FOLDER_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

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

#endif  // GRADSYNC_WORKER_CHECKPOINT_FOLDER_LOCK_H_
