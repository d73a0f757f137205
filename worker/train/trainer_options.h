#ifndef GRADSYNC_WORKER_TRAIN_TRAINER_OPTIONS_H_
#define GRADSYNC_WORKER_TRAIN_TRAINER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/straggler.h"
#include "core/base/trace_recorder.h"
#include "core/gpu/gpu_api.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"
#include "worker/data/open_dataset.h"
#include "worker/data/sampler.h"
#include "worker/models/model_options.h"
#include "worker/pipeline/split.h"
#include "worker/train/checkpoint_options.h"
#include "worker/train/compute_options.h"
#include "worker/train/kineto_trace.h"
#include "worker/train/loss_scaler.h"
#include "worker/train/recipe.h"
#include "worker/train/tensor_memory.h"
#include "worker/train/training_record.h"

namespace gradsync {

// A training job, as each worker of it is told.
struct TrainerOptions {
  ModelOptions model;              // with as many classes as the data has, or more if it says so
  std::string data = "synthetic";  // as OpenDataset() has it, with `dataset`
  DatasetOptions dataset;
  SampleOrder sampler = SampleOrder::kOwn;
  int64_t batch_size = 32;  // per worker
  int64_t steps = 0;        // optimizer steps; 0 takes `epochs`
  int64_t epochs = 1;
  int64_t warmup_steps = 0;  // steps at the start that are trained but not measured
  RecipeOptions recipe;      // learning rate by step; FitRecipe() fits it to the job's steps
  OptimizerSpec optimizer;
  // What has no weight decay, as ExcludeFromDecay() has it; for an optimizer of one group.
  std::vector<std::string> no_weight_decay;
  double max_norm = 0;         // StepOptions::max_norm
  double label_smoothing = 0;  // of the training loss, 0 to 1; an evaluation's has none
  // Batches per step (recipe.h). Each counts as its mean, whatever its size, over as many as
  // the step has.
  int64_t accumulate = 1;
  // BatchNorm updates its running statistics once per step, by all of its batches together
  // (worker/models/batch_statistics.h), instead of with each. Not with `data_parallel` or
  // `sync_batchnorm`.
  bool pool_statistics = false;
  // Replicas of the model in this process (data_parallel_step.h), among which each batch is cut into
  // equal parts; each part then counts as a batch does with `accumulate`. On the CPU, in fp32.
  int data_parallel = 1;
  // Stages of the model in this process (local_pipeline.h), each with a thread. On the CPU, in fp32,
  // and where the mesh does not cut the model.
  int model_parallel = 1;
  // How the model is cut into stages. `accumulate` are then the micro-batches of a step.
  PipelineOptions pipeline;
  // BatchNorm by the moments of all workers' batches (worker/models/batch_statistics.h). Not with
  // `cuda_graph`.
  bool sync_batchnorm = false;
  // Keeps an average of the weights (weight_average.h) with this decay beside them, by which
  // evaluations judge the job; 0: none.
  double ema_decay = 0;
  uint64_t seed = 0;                  // of initial weights, order of samples and augmentation
  int threads = 1;                    // compute threads of this worker
  int loader_threads = 1;             // 0: as loader_threads.h chooses
  int64_t prefetch_bytes = 64 << 20;  // of batches that are prepared ahead (PrefetchDepth())
  int ranks_on_host = 0;              // for that; 0: all ranks
  std::shared_ptr<GpuApi> gpu;        // holds model and batches, the sync's too; null: the CPU
  ComputeOptions compute;             // in which types and memory format; the evaluation too
  bool allow_tf32 = false;            // on a GPU (ApplyMathFlags())
  // On a GPU: forward and backward of a step are captured once and then replayed (step_graph.h),
  // unless gradients are recorded. Not with `accumulate` and `sync_batchnorm`.
  bool cuda_graph = true;
  // On a GPU (LetCudnnTryAlgorithms()): faster, but two runs of a job may choose other algorithms
  // and end with other bits.
  bool cudnn_benchmark = false;
  // Scales the loss. Always with fp16, with the default options unless others are here; without it
  // nothing gains from it. Only where workers update.
  absl::optional<LossScalerOptions> loss_scaler;
  CheckpointOptions checkpoint;
  // Asked before each step: whether the job ends here instead, which all ranks must be told before
  // the same step. A checkpoint is written then, if there is a folder for it, and nothing is
  // evaluated. May wait for others, and fail. Null: the job goes on to its last step.
  std::function<absl::StatusOr<bool>(int64_t step)> stop_before;
  bool allow_nonfinite = false;  // go on with a loss or parameters that are infinite or NaN
  bool evaluate = false;         // on the test split, after the last step
  // Also after every so many steps, by all workers together; 0: never. The time is in no step's.
  // Without bsp, where workers are at different steps, rank 0 keeps its model instead, and
  // evaluates what it has kept alone at the end; Create() refuses more than 1 GiB of models.
  int64_t evaluate_every = 0;
  // Trains no step: evaluates the weights of `checkpoint`, and needs the test split alone.
  bool evaluate_only = false;
  // Rank 0 hears of each evaluation of evaluate_every at once. May be null.
  std::function<void(const EvaluationPoint& point)> on_evaluation;
  // False: each worker trains by itself (topology local), with a side channel of its own alone.
  bool synchronised = true;
  bool one_pace = true;      // false: workers are at different steps at a time (ssp, asp)
  bool updates_here = true;  // this rank keeps the optimizer's state of its whole model
  // Owners alone keep parameters; the model's blocks are gathered one by one (sharded_step.h).
  bool shard_parameters = false;
  PlanOptions plan;               // bucket and chunk sizes; the world size is filled in
  bool record_gradients = false;  // fill StepReport::gradient_ready
  // Steps after which no other begins before `on_step` has been told of all, and before which none
  // waits for a loss: for who measures a few at a time on a GPU. Null: none, and a step waits where
  // many losses are on their way.
  std::function<bool(int64_t step)> report_all_after;
  // Forward, backward and the update at a worker take as much longer as it says; forward and
  // backward so that buckets become late too (slow_down.h), the update in one piece after it.
  Straggler straggler;
  std::shared_ptr<TensorMemory> memory;     // what tensors take is read from it; null: nobody asks
  std::shared_ptr<Activity> activity;       // what this rank does, for others; null: nobody asks
  std::shared_ptr<TraceRecorder> recorder;  // of some steps, for a trace of all ranks; may be null
  TraceOptions trace;                       // which steps Kineto records; none by default
  absl::Duration timeout = absl::Seconds(60);  // a bucket that is not there in time fails the job
  // Hears of one that a step has waited for for long (DdpEngineOptions::on_stall). May be null.
  std::function<void(int64_t step, int bucket, absl::Duration waited)> on_stall;
  absl::Duration stall_after = absl::Seconds(5);
  // Hears once of a sample that has been being read for that long while a step waits for it. May be
  // null.
  std::function<void(absl::string_view what, absl::Duration reading)> on_data_stall;
  // Whether this process was asked to end, which a step that waits for data would not notice. Null:
  // nobody asks.
  std::function<bool()> interrupted;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_TRAINER_OPTIONS_H_
