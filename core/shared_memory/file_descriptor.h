#ifndef GRADSYNC_CORE_SHARED_MEMORY_FILE_DESCRIPTOR_H_
#define GRADSYNC_CORE_SHARED_MEMORY_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace gradsync {

// Owns an open file descriptor and closes it. Movable; thread-compatible.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_FILE_DESCRIPTOR_H_
