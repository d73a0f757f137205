#ifndef GRADSYNC_WORKER_TRAIN_PIPELINE_STAGE_H_
#define GRADSYNC_WORKER_TRAIN_PIPELINE_STAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "gradsync/ddp/ddp_engine.h"
#include "worker/models/model.h"
#include "worker/pipeline/split.h"
#include "worker/pipeline/stage_link.h"
#include "worker/pipeline/stage_step.h"
#include "worker/train/batch_figures.h"
#include "worker/train/forward.h"
#include "worker/train/model_share.h"
#include "worker/train/pipeline_step.h"

namespace gradsync {

struct PipelineStageOptions {
  PipelineOptions pipeline;
  ComputeOptions compute;
  absl::Duration timeout = absl::Seconds(60);
  // A batch of the job's size, by which `auto` measures; its values are of no matter.
  std::function<at::Tensor()> example;
};

// This rank's stage of a model in training: which blocks it has, and the step that goes through
// them. Every rank makes the whole model, so that its weights are drawn whole; of other stages'
// blocks the parameters are let go when DdpEngine takes `part()`.
//
// Not thread-safe. A failure is the job's (worker/pipeline/stage_link.h).
class PipelineStage : public ModelShare {
 public:
  // Collective over all ranks of the job. Decides where the model is cut: as the options say, or by
  // what rank 0 measures, and tells the others. `model` is whole. All pointers must outlive the
  // result. Errors: INVALID_ARGUMENT naming --split or --mesh for stages that the model does not
  // have; FAILED_PRECONDITION for a parameter that two stages would share.
  static absl::StatusOr<std::unique_ptr<PipelineStage>> Create(const PipelineStageOptions& options,
                                                               const PipelinePlace& place,
                                                               std::shared_ptr<Model> model,
                                                               SideChannel* all_ranks);

  SideChannel* replicas() const override { return place_.replicas; }
  absl::optional<DdpPart> part() const override { return DdpPart{parameters_, all_ranks_}; }

  // Collective over the pipeline: connects to the neighbours.
  absl::Status Begin(DdpEngine* ddp) override;

  // Forward and backward of a step, up to its FinishStep(), in place of the batches of other shares.
  // Every stage is told the loss. Errors: those of RunStageStep() and of DdpEngine.
  absl::StatusOr<BatchFigures> Run(const PipelineStep& step, StageTimes* times);

  // Through all stages: the last one has the logits.
  absl::StatusOr<at::Tensor> TestLogits(const at::Tensor& inputs) override;

  absl::StatusOr<std::string> ParamsSha256(Deadline deadline) override;
  absl::Status Finish() override;
  ShareTraffic traffic() const override;

  bool is_first() const { return place_.link->stage() == 0; }
  bool is_last() const { return place_.link->stage() + 1 == place_.link->stages(); }

  const StageSplit& split() const { return split_; }

 private:
  PipelineStage(const PipelineStageOptions& options, const PipelinePlace& place,
                std::shared_ptr<Model> model, SideChannel* all_ranks);

  absl::Status AgreeOnSplit();
  absl::Status AssignParameters();
  BlockRange own() const { return split_[place_.link->stage()]; }

  const PipelineStageOptions options_;
  const PipelinePlace place_;
  SideChannel* const all_ranks_;
  StageSplit split_;
  std::vector<std::string> parameters_;  // of this stage, trainable
  std::vector<int> stage_of_;            // of each trainable parameter, in the model's order
  std::vector<at::Tensor> tensors_;      // those parameters
  int64_t test_batches_ = 0;
  absl::Duration waited_;  // for neighbours, in steps
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_PIPELINE_STAGE_H_
