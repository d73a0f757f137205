#include "worker/train/local_pipeline.h"

#include <cstdint>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "worker/train/forward.h"
#include "worker/train/pipeline_step.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<LocalPipeline>> LocalPipeline::Create(
    const LocalPipelineOptions& options, std::shared_ptr<Model> model) {
  GS_ASSIGN_OR_RETURN(StageSplit split, SplitModel(options.pipeline.split, options.stages,
                                                   options.compute, *model, options.example));
  GS_ASSIGN_OR_RETURN(const std::vector<int> stages, StagesOfParameters(*model, split));
  return absl::WrapUnique(new LocalPipeline(options, std::move(model), std::move(split), stages));
}

LocalPipeline::LocalPipeline(const LocalPipelineOptions& options, std::shared_ptr<Model> model,
                             StageSplit split, const std::vector<int>& stages_of_parameters)
    : options_(options),
      model_(std::move(model)),
      split_(std::move(split)),
      parameters_(split_.size()),
      stages_(static_cast<int>(split_.size())),
      threads_(static_cast<int>(split_.size()), options.threads) {
  for (size_t i = 0; i < stages_of_parameters.size(); ++i) {
    parameters_[stages_of_parameters[i]].push_back(static_cast<int>(i));
  }
  std::vector<int> begins;
  for (const BlockRange& stage : split_) begins.push_back(stage.first);
  model_->SeedPartsApart(begins);
}

absl::StatusOr<BatchFigures> LocalPipeline::Run(DdpEngine& ddp, const PipelineStep& step,
                                                std::vector<StageTimes>* times) {
  GS_RETURN_IF_ERROR(ddp.BeginStep(step.options));
  // The last stage reads a micro-batch's labels after the first has sent what it made of its
  // images.
  std::vector<at::Tensor> labels(step.micro_batches);
  PipelineLoss loss(step);
  at::Tensor figures;
  times->assign(split_.size(), StageTimes());
  const auto run_stage = [&](int s) -> absl::Status {
    const BlockRange blocks = split_[s];
    int64_t forward_of = 0;
    StageWork work;
    work.begin = [&](int64_t i) -> absl::StatusOr<at::Tensor> {
      forward_of = i;
      if (s > 0) return at::Tensor();
      GS_ASSIGN_OR_RETURN(const Batch batch, step.next(i));
      labels[i] = batch.labels;
      return batch.images;
    };
    work.seed = [&](int64_t i) { model_->BeginPart(s, step.seed(i)); };
    work.forward = [&](const at::Tensor& x) {
      return ForwardBlocks(options_.compute, *model_, blocks.first, blocks.end, x);
    };
    work.objective = [&](const at::Tensor& logits) {
      return loss.Objective(logits, std::exchange(labels[forward_of], at::Tensor()));
    };
    work.figures = [&] { return loss.Figures(); };
    work.backward = [&](bool last, const std::function<void()>& run) {
      if (last) {
        run();
        return absl::OkStatus();
      }
      const auto no_sync = ddp.NoSync(parameters_[s]);
      run();
      return absl::OkStatus();
    };
    GS_ASSIGN_OR_RETURN(
        const at::Tensor found,
        RunStageStep(stages_.channel(s), options_.pipeline.schedule, step.options.step,
                     step.micro_batches, work, absl::InfiniteDuration(), &(*times)[s]));
    if (s == 0) figures = found;
    return absl::OkStatus();
  };
  GS_RETURN_IF_ERROR(threads_.Run(static_cast<int>(split_.size()), run_stage, [&] {
    stages_.Fail(absl::AbortedError("another stage of this process has failed"));
  }));
  return PipelineLoss::Read(figures);
}

}  // namespace gradsync
