#include "ps_server/lent_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gradsync {

std::shared_ptr<LentBuffer> LentBuffer::CreateBytes(int64_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t size = static_cast<size_t>(bytes);
  const size_t rounded = (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, rounded);
  return std::shared_ptr<LentBuffer>(new LentBuffer(static_cast<char*>(memory), size));
}

LentBuffer::~LentBuffer() { std::free(data_); }

Release LentBuffer::Lend() {
  MutexLock lock(&mutex_);
  if (lenders_.fetch_add(1, std::memory_order_relaxed) == 0) keep_ = shared_from_this();
  return Release(&LentBuffer::GiveBack, this);
}

void LentBuffer::GiveBack(void* lent) {
  LentBuffer& buffer = *static_cast<LentBuffer*>(lent);
  std::shared_ptr<LentBuffer> last;  // goes without the mutex, which may go with it
  MutexLock lock(&buffer.mutex_);
  if (buffer.lenders_.fetch_sub(1, std::memory_order_release) == 1) last = std::move(buffer.keep_);
}

bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep) {
  if (!buffer->lent()) return true;
  const absl::Span<const char> bytes = buffer->bytes();
  std::shared_ptr<LentBuffer> fresh = LentBuffer::CreateBytes(static_cast<int64_t>(bytes.size()));
  if (fresh == nullptr) return false;
  if (keep) std::copy_n(bytes.data(), bytes.size(), fresh->mutable_bytes());
  buffer = std::move(fresh);
  return true;
}

}  // namespace gradsync
