// What is known of a job's training: of each step, of each epoch, and of the model on the test
// split.

#ifndef GRADSYNC_WORKER_TRAIN_TRAINING_RECORD_H_
#define GRADSYNC_WORKER_TRAIN_TRAINING_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "worker/train/step_times.h"

namespace gradsync {

// What training itself says of the model, epoch by epoch: mean loss and accuracy over the batches
// as they were trained on, while the parameters changed.

// Means over the samples of one epoch, or of the part of it that the job trained on.
struct EpochPoint {
  int64_t epoch = 0;  // 1 for the first
  int64_t steps = 0;
  int64_t samples = 0;  // predictions, of this worker
  double loss = 0;      // this worker's
  double accuracy = 0;  // this worker's, top-1, 0 to 1
  // Over all workers' samples; with the side channel of one worker, this worker's. 0 before
  // Share().
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

// What is known of a step that was trained.
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

struct LoggedStep {
  int64_t step = 0;  // 1 for the first of the job
  double loss = 0;
  double lr = 0;
  absl::Duration end;
  StepTimes times;
};

// A job's steps in memory that does not grow with their number: all of them while they are few,
// then every 2nd, 4th, 8th ... of them. Not thread-safe.
class StepLog {
 public:
  static constexpr size_t kMost = 8192;

  // Keeps at most `most` steps, an even number above 0.
  explicit StepLog(size_t most = kMost) : most_(most) {}

  void Add(const LoggedStep& step);

  // One of so many is kept, the last of them.
  int64_t stride() const { return stride_; }
  int64_t added() const { return added_; }

  // In order: those numbered stride(), 2 stride(), ... among the steps added.
  const std::vector<LoggedStep>& kept() const { return kept_; }

 private:
  const size_t most_;
  int64_t stride_ = 1;
  int64_t added_ = 0;
  std::vector<LoggedStep> kept_;
};

// What a model could do on a job's test split.
struct Evaluation {
  double loss = 0;      // mean over all samples
  double accuracy = 0;  // top-1, 0 to 1
  int64_t samples = 0;
};

// Of the weights, and of their average where the job keeps one.
struct Evaluations {
  Evaluation weights;
  absl::optional<Evaluation> average;

  // What the job is judged by: the average, if there is one.
  const Evaluation& judged() const { return average.has_value() ? *average : weights; }
};

// An evaluation in the course of training.
struct EvaluationPoint {
  int64_t step = 0;     // after which
  absl::Duration time;  // as TrainingResult::step_ends
  Evaluations tested;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINING_RECORD_H_
