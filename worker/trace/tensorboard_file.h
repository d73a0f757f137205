// Scalars by step, for TensorBoard.

#ifndef GRADSYNC_WORKER_TRACE_TENSORBOARD_FILE_H_
#define GRADSYNC_WORKER_TRACE_TENSORBOARD_FILE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The Castagnoli CRC of RFC 3720. Some hundred MB/s. Thread-safe.
uint32_t Crc32c(absl::string_view bytes);

// One event file, as TensorBoard finds it in a folder: records of length, its checksum, a message
// (proto/tensorboard_event.proto) and its checksum. Each call is one event and is in the file when
// it returns, so that a job can be watched, and one that dies leaves what it has written. Not
// thread-safe; blocks for the file.
class TensorboardFile {
 public:
  // In `folder`, which is made if it is not there, under a name of its own: runs that are written
  // into one folder are drawn as one. Errors: the errno's code, naming the file.
  static absl::StatusOr<std::unique_ptr<TensorboardFile>> Create(const std::string& folder);
  ~TensorboardFile();
  TensorboardFile(const TensorboardFile&) = delete;
  TensorboardFile& operator=(const TensorboardFile&) = delete;

  // The steps from `step` on follow. Those that an earlier file of the folder has from there on, of
  // a job that was lost after its last checkpoint, are not shown any more. Errors: as Add().
  absl::Status Begin(int64_t step);

  // Errors: DATA_LOSS naming the file when it was not written.
  absl::Status Add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::string& path() const { return path_; }

 private:
  TensorboardFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  absl::Status Write(const std::string& event);

  const std::string path_;
  std::FILE* const file_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRACE_TENSORBOARD_FILE_H_
