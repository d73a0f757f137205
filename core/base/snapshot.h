#ifndef GRADSYNC_CORE_BASE_SNAPSHOT_H_
#define GRADSYNC_CORE_BASE_SNAPSHOT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gradsync {

// A value that one thread sets and others read, whole, without ever holding up the one that sets it:
// readers that come in the middle try again (a seqlock). For numbers that are set once a step or so.
template <typename T>
class Snapshot {
  static_assert(std::is_trivially_copyable<T>::value, "copied word by word");
  static_assert(sizeof(T) % sizeof(uint64_t) == 0, "made of words");
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);

 public:
  Snapshot() { Set(T()); }

  // Not while another thread sets it.
  void Set(const T& value) {
    uint64_t words[kWords];
    std::memcpy(words, &value, sizeof(T));
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Whoever sees one of these words sees the odd version, or a later one, too.
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // What was set last, or before that while it is being set.
  T Get() const {
    uint64_t words[kWords];
    while (true) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
    }
    T value;
    std::memcpy(&value, words, sizeof(T));
    return value;
  }

 private:
  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<uint64_t>, kWords> words_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SNAPSHOT_H_
