#ifndef GRADSYNC_CORE_GROUP_WIRE_COUNTER_H_
#define GRADSYNC_CORE_GROUP_WIRE_COUNTER_H_

#include <atomic>
#include <cstdint>

#include "core/group/wire_stats.h"

namespace gradsync {

// Counts payload (WireStats). Thread-safe; what is added at a time is not seen at once.
class WireCounter {
 public:
  void Sent(int64_t bytes, int64_t messages = 1) {
    tx_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    tx_messages_.fetch_add(messages, std::memory_order_relaxed);
  }
  void Received(int64_t bytes, int64_t messages = 1) {
    rx_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    rx_messages_.fetch_add(messages, std::memory_order_relaxed);
  }
  void Add(const WireStats& stats) {
    Sent(stats.tx_bytes, stats.tx_messages);
    Received(stats.rx_bytes, stats.rx_messages);
  }

  WireStats stats() const {
    return {tx_bytes_.load(std::memory_order_relaxed), rx_bytes_.load(std::memory_order_relaxed),
            tx_messages_.load(std::memory_order_relaxed),
            rx_messages_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<int64_t> tx_bytes_{0};
  std::atomic<int64_t> rx_bytes_{0};
  std::atomic<int64_t> tx_messages_{0};
  std::atomic<int64_t> rx_messages_{0};
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_WIRE_COUNTER_H_
