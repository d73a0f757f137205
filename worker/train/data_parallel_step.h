#ifndef GRADSYNC_WORKER_TRAIN_DATA_PARALLEL_STEP_H_
#define GRADSYNC_WORKER_TRAIN_DATA_PARALLEL_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/activity.h"
#include "core/base/monotonic_time.h"
#include "core/plan/plan.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/data/data_loader.h"
#include "worker/models/batch_statistics.h"
#include "worker/models/create_model.h"
#include "worker/models/model.h"
#include "worker/train/batch_figures.h"
#include "worker/train/forward.h"
#include "worker/train/replica_threads.h"
#include "worker/train/step_times.h"
#include "worker/train/training_clock.h"

namespace gradsync {

struct DataParallelOptions {
  int replicas = 2;  // at least 1
  int threads = 1;   // compute threads of all replicas together
  int64_t part = 1;  // samples of a part; the last one of an epoch may have fewer
  ModelOptions model;
  ComputeOptions compute;
  Activity* activity = nullptr;  // outlives the step; may be null
};

// Replicas of a model in one process, as torch.nn.DataParallel has them: in each step the
// parameters are copied from the model to its replicas (replicate), a batch is cut into parts
// (scatter), each replica computes forward, loss and backward of its part on a thread of its own
// (apply), the losses are brought together (gather), and the gradients are added up in the model's
// (reduce), from where they leave as ever. The model itself is replica 0, and all but apply is the
// work of its device.
//
// The arithmetic is that of accumulation (worker/train/recipe.h) over the same parts:
// gradients are added to the bucket in the order of parts, by the code that does so for
// micro-batches; dropout has the seeds of micro-batches; running statistics are shared and updated
// in the order of parts (worker/models/batch_statistics.h). So parameters and buffers end with the
// same bits, if a replica has as many threads as the process that accumulates.
//
// Not thread-safe. Run() blocks for threads of this process, and not for peers.
class DataParallelStep {
 public:
  // Makes the replicas, with `model` as the first. Errors: those of CreateModel(); INTERNAL when
  // LibTorch throws.
  static absl::StatusOr<std::unique_ptr<DataParallelStep>> Create(
      const DataParallelOptions& options, std::shared_ptr<Model> model);
  ~DataParallelStep();

  // Into how many parts a batch is cut.
  int64_t PartsOf(const Batch& batch) const {
    return (batch.labels.size(0) + options_.part - 1) / options_.part;
  }

  // A batch of a step, which may have several.
  struct Work {
    StepOptions step;
    Batch batch;
    int64_t first_part = 0;  // of the batch, by number in the step
    int64_t parts = 1;       // of the step
    double label_smoothing = 0;
    std::function<uint64_t(int64_t part)> seed;
  };

  // Replicate, with the first batch of a step, to reduce, which with the last batch begins the step
  // in `ddp` and launches the buckets; up to its FinishStep(). `ddp` has the model. Adds the parts'
  // figures to `sum`, and what it took to `times`; `points` has its begin and have_data already.
  // Errors: those of BeginStep(); INTERNAL when LibTorch throws, naming the replica.
  absl::Status Run(DdpEngine& ddp, const Work& work, FigureSum* sum, ReplicaTimes* times,
                   ReplicaPoints* points);

 private:
  struct Replica {
    std::shared_ptr<Model> model;
    std::vector<at::Tensor> parameters;  // trainable, in the plan's order
    // Of the batch under way.
    Batch part;
    BatchFigures figures;
    MonotonicTime forward_done;
    absl::Duration busy;
  };

  DataParallelStep(const DataParallelOptions& options, std::shared_ptr<Model> model);

  absl::Status MakeReplicas();
  int64_t Replicate(int active);
  int64_t Scatter(const Batch& batch, int active);
  absl::Status Compute(const Work& work, Replica* replica, int number);
  absl::Status Apply(DdpEngine& ddp, const Work& work, int active, bool launches);
  int64_t Reduce(DdpEngine& ddp, int active, bool last);

  const DataParallelOptions options_;
  std::vector<Replica> replicas_;
  StatisticsTurns turns_;
  ReplicaThreads threads_;  // last: works on all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_DATA_PARALLEL_STEP_H_
