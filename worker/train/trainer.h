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
#include "core/group/side_channel.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "worker/data/dataset.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"
#include "worker/train/trainer_options.h"
#include "worker/train/training_record.h"
#include "worker/train/training_result.h"

namespace gradsync {

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
  // GradientSync, of DdpEngine::Create, of PipelineStage and of TensorSlice.
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
