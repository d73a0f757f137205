// How many batches make a step, when gradients of several are added up before the optimizer runs.

#ifndef GRADSYNC_WORKER_TRAIN_ACCUMULATION_H_
#define GRADSYNC_WORKER_TRAIN_ACCUMULATION_H_

#include <algorithm>
#include <cstdint>

namespace gradsync {

// Arithmetic without state. A step takes `per_step` batches, and the last step of an epoch what is
// left of it: no step has batches of two epochs.
struct Accumulation {
  int64_t share = 0;       // samples of a worker in an epoch
  int64_t batch_size = 1;  // of all batches but the epoch's last
  int64_t per_step = 1;

  int64_t BatchesFrom(int64_t position) const {
    return (share - position + batch_size - 1) / batch_size;
  }

  int64_t StepsPerEpoch() const { return (BatchesFrom(0) + per_step - 1) / per_step; }

  // Batches of the step whose first batch begins at `position` of the worker's share of an epoch.
  int64_t BatchesOfStepAt(int64_t position) const {
    return std::min(per_step, BatchesFrom(position));
  }
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_ACCUMULATION_H_
