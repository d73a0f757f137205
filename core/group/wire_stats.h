#ifndef GRADSYNC_CORE_GROUP_WIRE_STATS_H_
#define GRADSYNC_CORE_GROUP_WIRE_STATS_H_

#include <atomic>
#include <cstdint>

namespace gradsync {

// Payload counted at the transport: gradient and parameter bytes, without headers, credits or side
// channel. Messages are those that carry payload.
struct WireStats {
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
  int64_t tx_messages = 0;
  int64_t rx_messages = 0;
};

inline WireStats operator-(const WireStats& a, const WireStats& b) {
  return {a.tx_bytes - b.tx_bytes, a.rx_bytes - b.rx_bytes, a.tx_messages - b.tx_messages,
          a.rx_messages - b.rx_messages};
}

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

#endif  // GRADSYNC_CORE_GROUP_WIRE_STATS_H_
