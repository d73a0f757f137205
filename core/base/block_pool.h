// Memory blocks that are used again, for objects that come and go with every message.

#ifndef GRADSYNC_CORE_BASE_BLOCK_POOL_H_
#define GRADSYNC_CORE_BASE_BLOCK_POOL_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace gradsync {

// Keeps blocks that were given back, and hands them out again; all are of the size of the first one
// that was asked for, others are passed on to operator new. As many blocks are kept as were out at
// the same time. Thread-safe; blocks for no longer than a few assignments.
class BlockPool {
 public:
  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void* Take(size_t bytes);
  void Put(void* block, size_t bytes);

 private:
  struct Free {
    Free* next;
  };

  Mutex mutex_;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Free* free_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// As std::make_shared, with the memory, counts included, from `pool`, which lives as long as the
// object.
template <typename T, typename... Args>
std::shared_ptr<T> MakePooled(const std::shared_ptr<BlockPool>& pool, Args&&... args);

namespace internal {

template <typename T>
struct PoolAllocator {
  using value_type = T;

  explicit PoolAllocator(std::shared_ptr<BlockPool> from) : pool(std::move(from)) {}
  template <typename U>
  PoolAllocator(const PoolAllocator<U>& other) : pool(other.pool) {}  // NOLINT: as allocators do

  T* allocate(size_t n) { return static_cast<T*>(pool->Take(n * sizeof(T))); }
  void deallocate(T* memory, size_t n) { pool->Put(memory, n * sizeof(T)); }

  template <typename U>
  bool operator==(const PoolAllocator<U>& other) const {
    return pool == other.pool;
  }
  template <typename U>
  bool operator!=(const PoolAllocator<U>& other) const {
    return pool != other.pool;
  }

  std::shared_ptr<BlockPool> pool;
};

}  // namespace internal

template <typename T, typename... Args>
std::shared_ptr<T> MakePooled(const std::shared_ptr<BlockPool>& pool, Args&&... args) {
  return std::allocate_shared<T>(internal::PoolAllocator<T>(pool), std::forward<Args>(args)...);
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_BLOCK_POOL_H_
