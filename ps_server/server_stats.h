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
  // The same of steps alone, without broadcasts.
  int64_t step_tx_bytes = 0;
  int64_t step_rx_bytes = 0;
  int64_t steps = 0;        // begun in this run
  int64_t shard_bytes = 0;  // of the gradient; 0 until all workers have come
  int server = 0;           // this server's index, as the workers say
  int workers = 0;          // 0 until all have come
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_SERVER_STATS_H_
