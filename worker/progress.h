// How far a job is, in one line.

#ifndef GRADSYNC_WORKER_PROGRESS_H_
#define GRADSYNC_WORKER_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "worker/train/trainer.h"

namespace gradsync {

struct ProgressOptions {
  int64_t every = 0;             // a line after the first, the last, and every so many; 0: none
  int64_t samples_per_step = 0;  // of all ranks
  int64_t steps_per_epoch = 0;   // 0: nothing is said of epochs
};

// Not thread-safe. Nothing blocks.
class Progress {
 public:
  // The first step begins now.
  Progress(const ProgressOptions& options, MonotonicTime now)
      : options_(options), begin_(now), last_time_(now) {}

  // To be called for every step. The line for one that is reported at `now`, without an end of line;
  // empty where there is none. The accuracy is this rank's, of the epoch so far. Samples per second are those since the line before, and what is left is guessed from all
  // steps so far:
  //
  //   step 120/1950 epoch 2/5 loss 1.2345 accuracy 45.1 % 312 samples/s data 0.1 exposed 3.2 step 81.0 ms, 2 min 10
  //   s left
  std::string Line(const StepReport& report, MonotonicTime now);

 private:
  const ProgressOptions options_;
  const MonotonicTime begin_;
  MonotonicTime last_time_;  // of the last line
  int64_t last_step_ = 0;
  int64_t first_step_ = 0;  // above 1 in a job that was resumed; 0: none was reported
  int64_t epoch_ = 0;       // of the last report; this and the next two: what it has so far
  int64_t correct_ = 0;
  int64_t samples_ = 0;
};

// "2 h 5 min", "2 min 10 s", "8 s".
std::string FormatTimeLeft(absl::Duration left);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PROGRESS_H_
