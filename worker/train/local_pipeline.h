#ifndef GRADSYNC_WORKER_TRAIN_LOCAL_PIPELINE_H_
#define GRADSYNC_WORKER_TRAIN_LOCAL_PIPELINE_H_

#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/models/model.h"
#include "worker/pipeline/split.h"
#include "worker/pipeline/stage_channel.h"
#include "worker/pipeline/stage_step.h"
#include "worker/train/batch_figures.h"
#include "worker/train/compute_options.h"
#include "worker/train/pipeline_step.h"
#include "worker/train/replica_threads.h"

namespace gradsync {

struct LocalPipelineOptions {
  int stages = 2;            // at least 1
  int threads = 1;           // compute threads of all stages together
  PipelineOptions pipeline;  // schedule and split
  ComputeOptions compute;
  std::function<at::Tensor()> example;  // as SplitModel() has it
};

// A model in stages, each computed by a thread of this process, as torchgpipe has them on the
// devices of one: a step's micro-batches go through them by the same schedules, and by the same
// code, as where stages are ranks. The process has the whole model, so all but the step is as if it
// was not cut, and other processes may train on other samples.
//
// Gradients are added to their buckets in the order of micro-batches, and a bucket leaves when the
// last micro-batch's gradients of it are there, whatever stages they are of. So parameters end with
// the bits of accumulation (worker/train/recipe.h) over the same micro-batches, if a stage
// has as many threads as the process that accumulates.
//
// Not thread-safe. Run() blocks for threads of this process, and not for peers.
class LocalPipeline {
 public:
  // `model` is whole, in training, and has no gradients afterwards. Errors: those of SplitModel()
  // and StagesOfParameters().
  static absl::StatusOr<std::unique_ptr<LocalPipeline>> Create(const LocalPipelineOptions& options,
                                                               std::shared_ptr<Model> model);

  // Forward and backward of a step of `ddp`, which has the model, up to its FinishStep(); `times` by
  // stage. step.next is called on the first stage's thread, one call at a time. Errors: those of
  // BeginStep() and of step.next; INTERNAL naming the stage when LibTorch throws.
  absl::StatusOr<BatchFigures> Run(DdpEngine& ddp, const PipelineStep& step,
                                   std::vector<StageTimes>* times);

  const StageSplit& split() const { return split_; }

 private:
  LocalPipeline(const LocalPipelineOptions& options, std::shared_ptr<Model> model, StageSplit split,
                const std::vector<int>& stages_of_parameters);

  const LocalPipelineOptions options_;
  const std::shared_ptr<Model> model_;
  const StageSplit split_;
  std::vector<std::vector<int>> parameters_;  // by stage, indices into Plan::tensors()
  LocalStages stages_;
  ReplicaThreads threads_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_LOCAL_PIPELINE_H_
