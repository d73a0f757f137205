#ifndef GRADSYNC_CORE_BASE_TEMPORARY_FOLDER_H_
#define GRADSYNC_CORE_BASE_TEMPORARY_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// A new, empty folder among the system's temporary files, which only this user can read. Goes with
// all that is in it. Can be moved; one that was moved from owns nothing.
class TemporaryFolder {
 public:
  // Its name begins with `prefix`. Errors: UNAVAILABLE naming what could not be made.
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view prefix);
  ~TemporaryFolder();

  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path);

  std::string path_;  // empty: moved from
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_TEMPORARY_FOLDER_H_
