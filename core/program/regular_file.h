// Reading what a user, or a checkpoint, names as a file.
//
// A pipe is refused, and at once: opening one that nobody writes to would wait for ever, and one with
// a writer has its bytes once, for one of a job's processes. So are devices, sockets and folders.

#ifndef GRADSYNC_CORE_PROGRAM_REGULAR_FILE_H_
#define GRADSYNC_CORE_PROGRAM_REGULAR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// A file that is open for reading, and closed with the object. Can be moved; one that was moved from
// can only be destroyed. Not thread-safe; blocks for the disk only.
//
// Messages say what is wrong and nothing else, such as "Permission denied" or "a pipe, expected a
// regular file"; whoever opens puts the path in front, and what the file is for.
class RegularFile {
 public:
  // A link is followed. Errors: the errno's code, among them NOT_FOUND; INVALID_ARGUMENT for what is
  // neither a regular file nor a folder, FAILED_PRECONDITION for a folder.
  static absl::StatusOr<RegularFile> Open(const std::string& path);

  RegularFile(RegularFile&& other) noexcept : fd_(other.fd_), size_(other.size_) { other.fd_ = -1; }
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

  // Bytes, when it was opened.
  int64_t size() const { return size_; }

  // As long as the object.
  int fd() const { return fd_; }

  // Reads the next `bytes` bytes and returns how many there were: fewer only at the file's end.
  // Errors: the errno's code.
  absl::StatusOr<int64_t> Read(char* out, int64_t bytes);

 private:
  RegularFile(int fd, int64_t size) : fd_(fd), size_(size) {}

  int fd_;
  int64_t size_;
};

// A whole file, or its first `most` bytes. Errors: those of Open() and Read(); RESOURCE_EXHAUSTED for
// more than the memory that is left.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t most = std::numeric_limits<int64_t>::max());

// A file's bytes where the system keeps them: read when they are looked at, shared by all processes
// of a host, and given back when memory is short. Reading bytes that are cut off the file meanwhile
// ends the process (SIGBUS). Can be moved; one that was moved from can only be destroyed.
class MappedFile {
 public:
  // As RegularFile::Open(): a pipe, device, socket or folder is refused, at once. An empty file has
  // no bytes. Errors: those of RegularFile::Open(), and the errno's code.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  // Valid as long as this object, or the one that it was moved to. Thread-safe.
  absl::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile(const void* data, size_t size) : data_(data), size_(size) {}

  const void* data_;
  size_t size_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_REGULAR_FILE_H_
