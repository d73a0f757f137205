// What passes between ranks that each have a share of one model (worker/train/model_share.h).

#ifndef GRADSYNC_WORKER_TRAIN_SHARE_TRAFFIC_H_
#define GRADSYNC_WORKER_TRAIN_SHARE_TRAFFIC_H_

#include <cstdint>

#include "absl/time/time.h"

namespace gradsync {

// Tensors that pass between ranks in forward and backward; gradients and parameters are not these.
struct ShareTraffic {
  absl::Duration waited;  // for other ranks' tensors
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
};

inline ShareTraffic operator-(const ShareTraffic& a, const ShareTraffic& b) {
  return {a.waited - b.waited, a.tx_bytes - b.tx_bytes, a.rx_bytes - b.rx_bytes};
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_SHARE_TRAFFIC_H_
