// A queue that keeps its memory.

#ifndef GRADSYNC_CORE_BASE_FIFO_H_
#define GRADSYNC_CORE_BASE_FIFO_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace gradsync {

// First in, first out, as std::deque, but in a ring of slots that only grows: once it has held its
// most, nothing is allocated any more. T is default-constructible and movable; a slot whose element
// was taken holds a moved-from or default T. Thread-compatible.
template <typename T>
class Fifo {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    slots_[(first_ + size_) % slots_.size()] = std::move(value);
    ++size_;
  }

  // The i-th from the front, i < size().
  const T& operator[](size_t i) const { return slots_[(first_ + i) % slots_.size()]; }

  // The queue must not be empty.
  T& front() { return slots_[first_]; }
  T pop_front() {
    T value = std::exchange(slots_[first_], T());
    first_ = (first_ + 1) % slots_.size();
    --size_;
    return value;
  }

  void clear() {
    while (!empty()) pop_front();
  }

  void swap(Fifo& other) {
    slots_.swap(other.slots_);
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
  }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 8 : 2 * slots_.size());
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(first_ + i) % slots_.size()]);
    }
    slots_.swap(larger);
    first_ = 0;
  }

  std::vector<T> slots_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FIFO_H_
