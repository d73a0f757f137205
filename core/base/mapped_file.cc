#include "core/base/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "core/base/regular_file.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  GS_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  const auto size = static_cast<size_t>(file.size());
  if (size == 0) return MappedFile(nullptr, 0);
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) {
    return absl::Status(absl::ErrnoToStatusCode(errno), std::strerror(errno));
  }
  return MappedFile(data, size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<void*>(data_), size_);
}

}  // namespace gradsync
