#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "core/shared_memory/unix_socket.h"

namespace gradsync {

// Memory that several processes of one host map. It has no name: whoever is to map it gets its file
// descriptor (window_mesh.h), and it is gone when the last process that has it is, however that
// ended. Its size is sealed, so that no process can make another one's access fail.
//
// Not on /dev/shm, which containers keep small. Thread-safe; the memory itself is the users' to
// synchronise.
class Window {
 public:
  // Zeroed memory of `bytes` (at least 1), all of it allocated now. Starts at a page.
  // Errors: RESOURCE_EXHAUSTED when there is not enough memory; UNAVAILABLE when the kernel offers
  // none.
  static absl::StatusOr<std::shared_ptr<Window>> Create(size_t bytes);

  // Maps what another process created.
  // Errors: INVALID_ARGUMENT when it is not sealed against shrinking or has another size, with both
  // sizes; RESOURCE_EXHAUSTED when it cannot be mapped.
  static absl::StatusOr<std::shared_ptr<Window>> Map(FileDescriptor file, size_t bytes);

  // Unmaps it.
  ~Window();

  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // For passing to another process.
  int file() const { return file_.get(); }

  // Gives back the page table entries, and the resident memory that this process is charged for;
  // the contents stay.
  void Forget() const;

 private:
  Window(FileDescriptor file, char* data, size_t size)
      : file_(std::move(file)), data_(data), size_(size) {}

  const FileDescriptor file_;
  char* const data_;
  const size_t size_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_H_
