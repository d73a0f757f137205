#ifndef GRADSYNC_WORKER_TRAIN_GRADIENT_COMPUTER_H_
#define GRADSYNC_WORKER_TRAIN_GRADIENT_COMPUTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/plan/plan.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/data/data_loader.h"
#include "worker/models/create_model.h"
#include "worker/models/model.h"
#include "worker/train/batch_figures.h"
#include "worker/train/batch_source.h"
#include "worker/train/checkpointer.h"
#include "worker/train/data_parallel_step.h"
#include "worker/train/job_inputs.h"
#include "worker/train/local_pipeline.h"
#include "worker/train/model_share.h"
#include "worker/train/pipeline_stage.h"
#include "worker/train/slow_down.h"
#include "worker/train/step_graph.h"
#include "worker/train/step_reports.h"
#include "worker/train/trainer_options.h"
#include "worker/train/training_record.h"

namespace gradsync {

// A step up to its FinishStep(): takes its batches, goes forward and backward over each, and so
// launches the buckets, whichever way the job spreads that: batch by batch, as a CUDA graph, over
// stages or slices on several ranks, over stages or replicas on this one's threads.
//
// Not thread-safe, but OnGradient() is called in backward, by its thread. Errors of Run() are those
// of the batches, of the exchange and of other ranks' parts, and INTERNAL when LibTorch throws.
class GradientComputer {
 public:
  // Rank `rank` trains on the samples of `replica`. All references and pointers must outlive this
  // object.
  GradientComputer(const TrainerOptions& options, const JobInputs& inputs, int rank, int replica,
                   BatchSource* source, StepReports* reports)
      : options_(options),
        inputs_(inputs),
        rank_(rank),
        replica_(replica),
        source_(*source),
        reports_(*reports) {}

  // The model, made from `made_from`, where it is trained: with the options' replicas or stages of
  // this process. `example` returns inputs like a batch. Before all that follows.
  absl::Status Prepare(std::shared_ptr<Model> model, const ModelOptions& made_from,
                       std::function<at::Tensor()> example);

  // Every loss is multiplied by this number, which is where the model is. Unless it is called, by
  // none.
  void ScaleLossBy(at::Tensor scale) { loss_scale_ = std::move(scale); }

  // What steps run on: `share` of the model, which is `stage` where that is not null. With
  // `use_graph` batches of one shape run as a CUDA graph.
  void Begin(DdpEngine* ddp, ModelShare* share, PipelineStage* stage, bool use_graph);

  // Adds what it took to the report, and what it read.
  absl::Status Run(const StepOptions& step, StepReport* report);

  // A parameter's gradient is complete; of DdpEngineOptions::on_gradient.
  void OnGradient(int parameter);

  // Sleeps for what a straggler would have taken longer than `computed`, and returns for how long.
  absl::Duration Stretch(absl::Duration computed) { return slow_down_.Stretch(computed); }

  // After the step under way, or the last one.
  const JobPosition& position() const { return position_; }

  // Where this process's own stages are cut; empty without such.
  std::string split() const;

 private:
  absl::Status SeedModel(int64_t step, int64_t micro_batch);
  absl::StatusOr<Batch> NextBatch(int64_t i, StepReport* report);
  absl::Status ComputeBatches(const StepOptions& step, StepReport* report);
  absl::Status ComputeStages(const StepOptions& options, StepReport* report);
  absl::Status ComputeReplicas(const StepOptions& step, StepReport* report);
  absl::StatusOr<BatchFigures> AddGradients(const StepOptions& step, const Batch& batch);
  BatchFigures ForwardBackward(const Batch& batch);
  absl::Status Count(const BatchFigures& own, bool last, FigureSum* sum);

  const TrainerOptions& options_;
  const JobInputs& inputs_;
  const int rank_;
  const int replica_;
  BatchSource& source_;
  StepReports& reports_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<DataParallelStep> replicas_;     // null with one replica
  std::unique_ptr<LocalPipeline> local_pipeline_;  // null unless model_parallel
  at::Tensor loss_scale_;                          // may be undefined
  DdpEngine* ddp_ = nullptr;
  ModelShare* share_ = nullptr;
  PipelineStage* stage_ = nullptr;
  std::unique_ptr<StepGraph> step_graph_;
  SlowDown slow_down_;
  int64_t batches_ = 1;                       // of the step under way
  MonotonicTime forward_done_;                // of the batch under way
  std::vector<MonotonicTime> gradient_done_;  // in this step, by parameter; empty unless recorded
  JobPosition position_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_GRADIENT_COMPUTER_H_
