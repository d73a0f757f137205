#ifndef GRADSYNC_WORKER_TRAIN_DATA_WAIT_H_
#define GRADSYNC_WORKER_TRAIN_DATA_WAIT_H_

#include <vector>

#include "absl/time/time.h"
#include "worker/train/step_times.h"

namespace gradsync {

// The part of their time, 0 to 1, that steps waited for their batches. On a GPU, where the host
// runs ahead of the device, it may have waited while the device did not. Pure.
inline double DataWaitShare(const std::vector<StepTimes>& steps) {
  absl::Duration data, total;
  for (const StepTimes& times : steps) {
    data += times.data;
    total += times.total;
  }
  return total > absl::ZeroDuration() ? absl::FDivDuration(data, total) : 0;
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_DATA_WAIT_H_
