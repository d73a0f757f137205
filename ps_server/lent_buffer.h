// Memory for floats that may be lent to streams, which read it without copying.

#ifndef GRADSYNC_PS_SERVER_LENT_BUFFER_H_
#define GRADSYNC_PS_SERVER_LENT_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// A fixed number of floats, or of bytes of an encoded chunk; 64-byte aligned, zero at first.
// Whoever sends from it gives the frame what Lend() returns; whoever writes to it first asks lent()
// and takes another buffer if it is. Lend and lent are thread-safe; the floats are the caller's to
// guard.
class LentBuffer : public std::enable_shared_from_this<LentBuffer> {
 public:
  // Null when there is no memory for it.
  static std::shared_ptr<LentBuffer> Create(int64_t numel) { return CreateBytes(4 * numel); }
  static std::shared_ptr<LentBuffer> CreateBytes(int64_t bytes);

  ~LentBuffer();
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  float* data() { return reinterpret_cast<float*>(data_); }
  int64_t numel() const { return static_cast<int64_t>(size_ / sizeof(float)); }
  char* mutable_bytes() { return data_; }
  absl::Span<const char> bytes() const { return absl::MakeConstSpan(data_, size_); }

  // Keeps the buffer alive and lent until it is run. Allocates nothing.
  Release Lend();
  bool lent() const { return lenders_.load(std::memory_order_acquire) != 0; }

 private:
  LentBuffer(char* data, size_t size) : data_(data), size_(size) {}
  static void GiveBack(void* buffer);

  char* const data_;
  const size_t size_;
  std::atomic<int> lenders_{0};  // written under the mutex
  Mutex mutex_;
  std::shared_ptr<LentBuffer> keep_ ABSL_GUARDED_BY(mutex_);  // while there are lenders
};

// Makes `buffer` one that nobody reads, so that it may be written: puts a new one in its place if
// it is lent, with the same contents if `keep`. Returns false when there is no memory.
bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_LENT_BUFFER_H_
