#ifndef GRADSYNC_CORE_BASE_MAPPED_FILE_H_
#define GRADSYNC_CORE_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

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

#endif  // GRADSYNC_CORE_BASE_MAPPED_FILE_H_
