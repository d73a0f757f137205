#include "core/base/block_pool.h"

#include <algorithm>
#include <new>

namespace gradsync {

BlockPool::~BlockPool() {
  while (free_ != nullptr) {
    Free* const block = free_;
    free_ = block->next;
    ::operator delete(block);
  }
}

void* BlockPool::Take(size_t bytes) {
  {
    MutexLock lock(&mutex_);
    if (bytes_ == 0) bytes_ = std::max(bytes, sizeof(Free));
    if (bytes <= bytes_ && free_ != nullptr) {
      Free* const block = free_;
      free_ = block->next;
      return block;
    }
    if (bytes <= bytes_) bytes = bytes_;
  }
  return ::operator new(bytes);
}

void BlockPool::Put(void* block, size_t bytes) {
  {
    MutexLock lock(&mutex_);
    if (bytes <= bytes_) {
      free_ = new (block) Free{free_};
      return;
    }
  }
  ::operator delete(block);
}

}  // namespace gradsync
