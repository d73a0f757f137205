#ifndef GRADSYNC_PS_SERVER_SERVER_STATS_H_
#define GRADSYNC_PS_SERVER_SERVER_STATS_H_

#include <cstdint>

namespace gradsync {

// What a server moved: payload of gradients and parameters at the transport, without headers,
// credits, norms and optimizer state; messages are those that carry such payload.
struct ServerStats {
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
  int64_t tx_messages = 0;
  int64_t rx_messages = 0;
  int64_t steps = 0;  // number of the last one
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVER_STATS_H_
