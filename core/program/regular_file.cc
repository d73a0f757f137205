#include "core/program/regular_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

absl::Status Failed(int error) {
  return absl::Status(absl::ErrnoToStatusCode(error), std::strerror(error));
}

const char* KindOf(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  // Opening a pipe waits for its writer without O_NONBLOCK, which means nothing to a regular file.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Failed(errno);
  RegularFile file(fd, 0);
  struct stat about;
  if (fstat(fd, &about) != 0) return Failed(errno);
  if (S_ISDIR(about.st_mode)) {
    return absl::FailedPreconditionError("a folder, expected a regular file");
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(KindOf(about.st_mode), ", expected a regular file"));
  }
  file.size_ = about.st_size;
  return file;
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<int64_t> RegularFile::Read(char* out, int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t now = read(fd_, out + done, static_cast<size_t>(bytes - done));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return Failed(errno);
    if (now == 0) break;
    done += now;
  }
  return done;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, int64_t most) {
  // A file may have grown, and of one such as those of /proc the size is not known before.
  constexpr int64_t kBlock = 4096;
  constexpr int64_t kSurelyThere = 64 << 20;  // so much memory is not asked for before it is taken
  GS_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
  std::string text;
  bool more = true;
  while (more) {
    const auto done = static_cast<int64_t>(text.size());
    const int64_t wanted = std::min(most - done, std::max(file.size() - done + 1, kBlock));
    if (wanted > kSurelyThere) {
      GS_RETURN_IF_ERROR(CheckMemory("its bytes", static_cast<uint64_t>(wanted)));
    }
    text.resize(static_cast<size_t>(done + wanted));
    GS_ASSIGN_OR_RETURN(const int64_t read, file.Read(&text[static_cast<size_t>(done)], wanted));
    text.resize(static_cast<size_t>(done + read));
    more = read == wanted && done + read < most;
  }
  return text;
}

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
