// Memory for floats that may be lent to streams, which read it without copying.

#ifndef GRADSYNC_PS_SERVER_LENT_BUFFER_H_
#define GRADSYNC_PS_SERVER_LENT_BUFFER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

namespace gradsync {

// A fixed number of floats, 64-byte aligned, zero at first. Whoever sends from it calls Lend()
// before and GiveBack() from the frame's `released`, which also keeps a reference; whoever writes
// to it first asks lent() and takes another buffer if it is. Lend, GiveBack and lent are
// thread-safe; the floats are the caller's to guard.
class LentBuffer {
 public:
  // Null when there is no memory for it.
  static std::shared_ptr<LentBuffer> Create(int64_t numel);

  ~LentBuffer();
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  float* data() { return data_; }
  int64_t numel() const { return numel_; }
  absl::Span<const char> bytes() const {
    return absl::MakeConstSpan(reinterpret_cast<const char*>(data_), numel_ * sizeof(float));
  }

  void Lend() { lenders_.fetch_add(1, std::memory_order_relaxed); }
  void GiveBack() { lenders_.fetch_sub(1, std::memory_order_release); }
  bool lent() const { return lenders_.load(std::memory_order_acquire) != 0; }

 private:
  LentBuffer(float* data, int64_t numel) : data_(data), numel_(numel) {}

  float* const data_;
  const int64_t numel_;
  std::atomic<int> lenders_{0};
};

// Makes `buffer` one that nobody reads, so that it may be written: puts a new one in its place if
// it is lent, with the same contents if `keep`. Returns false when there is no memory.
bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_LENT_BUFFER_H_
