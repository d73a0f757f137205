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
