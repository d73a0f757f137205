// What training itself says of the model, epoch by epoch: mean loss and accuracy over the batches
// as they were trained on, while the parameters changed.

#ifndef GRADSYNC_WORKER_TRAIN_EPOCH_TALLY_H_
#define GRADSYNC_WORKER_TRAIN_EPOCH_TALLY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"

namespace gradsync {

// Means over the samples of one epoch, or of the part of it that the job trained on.
struct EpochPoint {
  int64_t epoch = 0;  // 1 for the first
  int64_t steps = 0;
  int64_t samples = 0;  // predictions, of this worker
  double loss = 0;      // this worker's
  double accuracy = 0;  // this worker's, top-1, 0 to 1
  // Over all workers' samples; with the side channel of one worker, this worker's. 0 before Share().
  double global_loss = 0;
  double global_accuracy = 0;
};

// Adds up a worker's steps. Not thread-safe; only Share() waits.
class EpochTally {
 public:
  // The next step: its mean loss over `samples` predictions, of which `correct` were right. Epochs
  // begin in order.
  void Add(int64_t epoch, double loss, double correct, int64_t samples);

  // Of the epoch of the last step, as far as it has come. Only after Add().
  EpochPoint Current() const { return PointOf(epochs_.back()); }

  // Collective. All epochs' points, with the global figures: one exchange, of a few bytes for each
  // epoch. All workers must have added steps of the same epochs. Errors: those of
  // SideChannel::SumDoubles().
  absl::StatusOr<std::vector<EpochPoint>> Share(SideChannel& side_channel, Deadline deadline) const;

 private:
  struct Sums {
    int64_t epoch = 0;
    int64_t steps = 0;
    int64_t samples = 0;
    double loss = 0;  // over samples
    double correct = 0;
  };

  static EpochPoint PointOf(const Sums& sums);

  std::vector<Sums> epochs_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_EPOCH_TALLY_H_
