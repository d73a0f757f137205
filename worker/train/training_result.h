// What a job ends with, figures of its steps, what they cost and what the model could do; and the end
// in which that comes about: what follows the last step, until all workers have proved that they hold
// the same parameters and the backend is shut down.

#ifndef GRADSYNC_WORKER_TRAIN_TRAINING_RESULT_H_
#define GRADSYNC_WORKER_TRAIN_TRAINING_RESULT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/group/wire_stats.h"
#include "core/sync/gradient_sync.h"
#include "worker/train/step_times.h"
#include "worker/train/training_record.h"

namespace gradsync {

class JobEvaluation;
class StepLoop;
class TrainingJob;

struct TrainingResult {
  // Of steps that are the `step_stride`th, the 2 step_stride-th and so on since first_step. It is 1
  // unless there are many (StepLog).
  int64_t step_stride = 1;
  std::vector<StepTimes> times;  // of measured steps alone
  std::vector<double> losses;    // of this worker's batches
  std::vector<double> learning_rates;
  // When a step ended, on a GPU there, since the first began; what evaluations and checkpoints cost
  // is left out.
  std::vector<absl::Duration> step_ends;

  int64_t steps = 0;           // that were trained, all of them
  int64_t measured_steps = 0;  // of those
  // With evaluate_every, what TrainerOptions::on_evaluation heard of.
  std::vector<EvaluationPoint> evaluations;
  std::vector<EpochPoint> epochs;
  double first_loss = 0;  // first step, mean over the side channel's workers
  // Last tenth of the steps in `losses` (at least one), likewise.
  double final_loss = 0;
  int64_t test_samples = 0;  // 0 when not evaluated
  bool averaged = false;     // whether there is an average of the weights
  double test_loss = 0;      // this and the next: of the weights' average, where there is one
  double test_accuracy = 0;
  double weights_test_loss = 0;  // this and the next: of the weights themselves
  double weights_test_accuracy = 0;
  WireStats wire;  // of the measured steps
  // Of synchronised BatchNorm, all steps: how often this worker met the others in forward and
  // backward, and for how long it waited for them.
  int64_t moment_exchanges = 0;
  absl::Duration moment_wait;
  // Of the measured steps. A GPU is waited for before the first and after the last of them, so that
  // both are of steps that were done, no more and no fewer.
  absl::Duration cpu;             // user and system time of this process
  absl::Duration measured;        // wall-clock time
  int64_t peak_tensor_bytes = 0;  // TrainerOptions::memory: the most in any measured step
  Staleness staleness;            // of this worker's steps, all of them
  // Of the measured steps, with the neighbours of a stage or the other slices of a model.
  ShareTraffic share_traffic;
  int64_t skipped_steps = 0;  // whose gradients were not finite, with a loss scale
  double loss_scale = 1;      // after the last step
  int64_t first_step = 1;     // above 1 in a job that was resumed; then "all steps" are from here
  bool stopped = false;       // before its last step, as TrainerOptions::stop_before has it
  int64_t last_step = 0;      // that was trained; that before first_step if there was none
  // A checkpoint holds what was trained: of last_step, or of the steps before where none was.
  bool saved = false;
  int checkpoints = 0;             // written
  absl::Duration checkpoint_time;  // spent on them, evaluations included; in no step's time
  std::string params_sha256;       // after the last step; equal on all workers, or Run() fails
};

// Collective, once, after StepLoop::Run(), which has begun `result`. Fills in what the steps left in
// `loop` and in the job's reports; waits until all have done their steps, even different numbers of
// them; evaluates what was kept, and if asked to what there is now; compares the parameters of all
// workers, and shuts the backend down. Errors: those of the exchange and of JobEvaluation; INTERNAL,
// naming step and rank, for parameters that are not finite, unless these are allowed, and when
// workers ended with different ones.
absl::Status EndJob(const StepLoop& loop, TrainingJob& job, JobEvaluation& evaluation,
                    TrainingResult* result);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINING_RESULT_H_
