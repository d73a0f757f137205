#ifndef GRADSYNC_CORE_GROUP_WIRE_STATS_H_
#define GRADSYNC_CORE_GROUP_WIRE_STATS_H_

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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_WIRE_STATS_H_
