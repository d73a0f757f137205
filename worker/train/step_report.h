// What is known of a step that was trained.

#ifndef GRADSYNC_WORKER_TRAIN_STEP_REPORT_H_
#define GRADSYNC_WORKER_TRAIN_STEP_REPORT_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "worker/train/epoch_tally.h"
#include "worker/train/step_times.h"

namespace gradsync {

struct StepReport {
  int64_t step = 0;  // 1 for the first
  int64_t steps = 0;
  int64_t epoch = 0;    // that its samples are from; 1 for the first
  double loss = 0;      // mean over this worker's batch
  int64_t samples = 0;  // predictions in this worker's batch
  int64_t correct = 0;  // of those
  double lr = 0;        // of its update
  StepTimes times;
  absl::Duration end;  // on a GPU there, since the first step began; TrainingClock::StepTime
  // When backward completed each gradient, by index into Plan::tensors(), since forward
  // began. Empty unless TrainerOptions::record_gradients.
  std::vector<absl::Duration> gradient_ready;
  // With the last step of an epoch and of the job: the epoch as this worker trained it, global
  // figures left out.
  absl::optional<EpochPoint> epoch_end;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_REPORT_H_
