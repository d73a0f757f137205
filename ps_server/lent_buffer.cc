#include "ps_server/lent_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gradsync {

std::shared_ptr<LentBuffer> LentBuffer::Create(int64_t numel) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = std::max<size_t>(numel * sizeof(float), 1);
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, rounded);
  return std::shared_ptr<LentBuffer>(new LentBuffer(static_cast<float*>(memory), numel));
}

LentBuffer::~LentBuffer() { std::free(data_); }

bool MakeWritable(std::shared_ptr<LentBuffer>& buffer, bool keep) {
  if (!buffer->lent()) return true;
  std::shared_ptr<LentBuffer> fresh = LentBuffer::Create(buffer->numel());
  if (fresh == nullptr) return false;
  if (keep) std::copy_n(buffer->data(), buffer->numel(), fresh->data());
  buffer = std::move(fresh);
  return true;
}

}  // namespace gradsync
