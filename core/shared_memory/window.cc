#include "core/shared_memory/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// So much at a time: a signal ends the call under way, that which lets a stopped process go on too,
// and takes back what it has allocated.
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kBytesPerCheck = 16 * kPieceBytes;

absl::Status Allocate(int file, size_t bytes) {
  for (size_t begin = 0; begin < bytes;) {
    // Before each piece: other processes of the host take theirs at the same time.
    if (begin % kBytesPerCheck == 0) GS_RETURN_IF_ERROR(CheckMemory("window", bytes - begin));
    const size_t piece = std::min(kPieceBytes, bytes - begin);
    const int error = posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(piece));
    if (error == EINTR) continue;
    if (error != 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "window: cannot allocate ", bytes, " bytes of shared memory: ", std::strerror(error)));
    }
    begin += piece;
  }
  return absl::OkStatus();
}

absl::StatusOr<char*> MapShared(int file, size_t bytes) {
  GS_RETURN_IF_ERROR(CheckAddresses("window", bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("window: cannot map ", bytes, " bytes: ", std::strerror(errno)));
  }
  return static_cast<char*>(data);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Window>> Window::Create(size_t bytes) {
  FileDescriptor file(memfd_create("gradsync-window", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) {
    return absl::UnavailableError(
        absl::StrCat("window: cannot create shared memory: ", std::strerror(errno)));
  }
  // Allocated here, where a lack of memory is an error and not a signal at the first access.
  GS_RETURN_IF_ERROR(Allocate(file.get(), bytes));
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::UnavailableError(
        absl::StrCat("window: cannot seal shared memory: ", std::strerror(errno)));
  }
  absl::StatusOr<char*> data = MapShared(file.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<Window>(new Window(std::move(file), *data, bytes));
}

absl::StatusOr<std::shared_ptr<Window>> Window::Map(FileDescriptor file, size_t bytes) {
  struct stat found = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file.get(), &found) != 0) {
    return absl::InvalidArgumentError(
        "window: expected memory that is sealed against shrinking, found another file");
  }
  if (static_cast<size_t>(found.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("window: expected ", bytes, " bytes, found ", found.st_size));
  }
  absl::StatusOr<char*> data = MapShared(file.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<Window>(new Window(std::move(file), *data, bytes));
}

Window::~Window() { munmap(data_, size_); }

void Window::Forget() const { madvise(data_, size_, MADV_DONTNEED); }

}  // namespace gradsync
