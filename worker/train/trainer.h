// The job: trains one model on one dataset over any GradientSync, and says where each step's time
// went.

#ifndef GRADSYNC_WORKER_TRAIN_TRAINER_H_
#define GRADSYNC_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/group/side_channel.h"
#include "core/pipeline/slice_link.h"
#include "core/pipeline/stage_link.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "worker/data/data_identity.h"
#include "worker/train/epoch_tally.h"
#include "worker/train/evaluation.h"
#include "worker/train/share_traffic.h"
#include "worker/train/step_report.h"
#include "worker/train/step_times.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

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

// One worker's part of the job. Not thread-safe. Bind() and Run() block while they wait for peers;
// every wait has a deadline.
class Trainer {
 public:
  // Checks the options, opens the data and builds the model: everything that can be wrong before
  // peers are involved. Errors: INVALID_ARGUMENT, NOT_FOUND, DATA_LOSS naming flag or file, what
  // was expected and what came.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const TrainerOptions& options, int rank,
                                                         int world_size);
  virtual ~Trainer() = default;

  // Collective, once. Binds the model to `sync` and makes all workers start from rank 0's
  // parameters. `workers` is another side channel, of all workers even where each trains by itself:
  // it hands out the weights that rank 0 has read where `sync` does not, and then is used by
  // synchronised BatchNorm alone, in the midst of steps; null where neither is needed. With
  // TrainerOptions::pipeline `sync` is of the ranks that hold the same stage, `side_channel` of all
  // ranks, and `place` says where this one is, or `slice` where the mesh has slices. All arguments
  // must outlive the trainer, `place` and `slice` themselves need not. Errors: those of
  // GradientSync, of DistributedDataParallel::Create, of PipelineStage and of TensorSlice.
  virtual absl::Status Bind(GradientSync* sync, SideChannel* side_channel,
                            SideChannel* workers = nullptr, const PipelinePlace* place = nullptr,
                            const SlicePlace* slice = nullptr) = 0;

  // Collective, after Bind(). Trains all steps; `on_step` is called once for each, in order, when
  // its loss and its times are known: on the CPU right after the step, on a GPU, which is waited
  // for only where it is further behind, up to four steps later. Then evaluates if asked to,
  // compares the parameters of all workers, and shuts `sync` down. Errors: those of GradientSync;
  // INTERNAL when LibTorch throws, when workers ended with different parameters, and, naming step
  // and rank, for a loss or, after the last step, parameters that are not finite; with a loss scale
  // only when no scale helps.
  virtual absl::StatusOr<TrainingResult> Run(
      const std::function<void(const StepReport&)>& on_step) = 0;

  virtual const Plan& plan() const = 0;  // after Bind()

  virtual int loader_threads() const = 0;  // that prepare training's batches by now; 0: none

  // The first step of Run(), after Bind(): above 1 in a job that goes on.
  virtual int64_t first_step() const = 0;

  virtual int64_t steps_per_epoch() const = 0;

  // What the job trains on, by split: "train", and "test" where it is used. All ranks should have the
  // same.
  virtual const std::map<std::string, DataIdentity>& data() const = 0;

  // What a user should know of that, a line each (ImageDataset::remarks()).
  virtual std::vector<std::string> data_remarks() const = 0;

  // What of the flags will do nothing in this job, a line each.
  virtual std::vector<std::string> notices() const = 0;

  // The blocks before which stages begin, as --split takes them; empty without stages.
  virtual std::string split() const = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINER_H_
