#ifndef GRADSYNC_WORKER_CHECKPOINT_WATCHED_FILE_SYSTEM_H_
#define GRADSYNC_WORKER_CHECKPOINT_WATCHED_FILE_SYSTEM_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "worker/checkpoint/file_system.h"

namespace gradsync {

// The machine's file system for tests: says what it is about to change, "rename A to B", and does
// not if `before` returns an error. A write that is not allowed leaves half of the file, as one
// does that a killed process had begun.
class WatchedFileSystem : public FileSystem {
 public:
  using Before = std::function<absl::Status(const std::string& call)>;

  explicit WatchedFileSystem(Before before) : before_(std::move(before)) {}

  absl::StatusOr<std::string> Read(const std::string& path) override { return real_->Read(path); }
  absl::StatusOr<std::string> ReadLink(const std::string& path) override {
    return real_->ReadLink(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return real_->List(path);
  }
  absl::StatusOr<Room> RoomIn(const std::string& path) override { return real_->RoomIn(path); }

  absl::Status Write(const std::string& path, absl::string_view bytes) override {
    const absl::Status allowed = before_(absl::StrCat("write ", path));
    if (allowed.ok()) return real_->Write(path, bytes);
    real_->Write(path, bytes.substr(0, bytes.size() / 2)).IgnoreError();
    return allowed;
  }
  absl::Status MakeFolder(const std::string& path) override {
    GS_RETURN_IF_ERROR(before_(absl::StrCat("make ", path)));
    return real_->MakeFolder(path);
  }
  absl::Status Sync(const std::string& path) override {
    GS_RETURN_IF_ERROR(before_(absl::StrCat("sync ", path)));
    return real_->Sync(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    GS_RETURN_IF_ERROR(before_(absl::StrCat("rename ", from, " to ", to)));
    return real_->Rename(from, to);
  }
  absl::Status Link(const std::string& target, const std::string& path) override {
    GS_RETURN_IF_ERROR(before_(absl::StrCat("link ", path, " to ", target)));
    return real_->Link(target, path);
  }
  absl::Status Remove(const std::string& path) override {
    GS_RETURN_IF_ERROR(before_(absl::StrCat("remove ", path)));
    return real_->Remove(path);
  }

 private:
  const Before before_;
  const std::unique_ptr<FileSystem> real_ = NewLocalFileSystem();
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_WATCHED_FILE_SYSTEM_H_
