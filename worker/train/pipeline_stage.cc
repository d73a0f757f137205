#include "worker/train/pipeline_stage.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/flat_parameters.h"
#include "worker/train/pipeline_step.h"

namespace gradsync {
namespace {

constexpr absl::string_view kSplit = "split ";

std::string Answer(const absl::StatusOr<StageSplit>& split) {
  if (!split.ok()) return split.status().ToString();
  return absl::StrCat(kSplit, SplitToString(*split));
}

}  // namespace

PipelineStage::PipelineStage(const PipelineStageOptions& options, const PipelinePlace& place,
                             std::shared_ptr<Model> model, SideChannel* all_ranks)
    : ModelShare(options.compute, std::move(model)),
      options_(options),
      place_(place),
      all_ranks_(all_ranks) {}

absl::StatusOr<std::unique_ptr<PipelineStage>> PipelineStage::Create(
    const PipelineStageOptions& options, const PipelinePlace& place, std::shared_ptr<Model> model,
    SideChannel* all_ranks) {
  auto stage = absl::WrapUnique(new PipelineStage(options, place, std::move(model), all_ranks));
  GS_RETURN_IF_ERROR(stage->AgreeOnSplit());
  GS_RETURN_IF_ERROR(stage->AssignParameters());
  return stage;
}

// What rank 0 measures is no other rank's, so its cut is everybody's.
absl::Status PipelineStage::AgreeOnSplit() {
  const int blocks = static_cast<int>(model().blocks().size());
  absl::StatusOr<StageSplit> own = StageSplit();
  if (all_ranks_->rank() == 0) {
    own = SplitModel(options_.pipeline.split, place_.link->stages(), compute(), model(),
                     options_.example);
  }
  GS_ASSIGN_OR_RETURN(const std::string told,
                      all_ranks_->Broadcast(Answer(own), Deadline::In(options_.timeout)));
  GS_RETURN_IF_ERROR(own.status());
  absl::string_view text = told;
  if (!absl::ConsumePrefix(&text, kSplit)) {
    return absl::AbortedError(absl::StrCat("rank 0 could not cut the model: ", told));
  }
  GS_ASSIGN_OR_RETURN(split_, ParseSplit(text, blocks, place_.link->stages()));
  return absl::OkStatus();
}

absl::Status PipelineStage::AssignParameters() {
  GS_ASSIGN_OR_RETURN(stage_of_, StagesOfParameters(model(), split_));
  const std::vector<NamedParameter> parameters = TrainableParametersOf(model());
  for (size_t i = 0; i < parameters.size(); ++i) {
    tensors_.push_back(parameters[i].tensor);
    if (stage_of_[i] == place_.link->stage()) parameters_.push_back(parameters[i].name);
  }
  return absl::OkStatus();
}

absl::Status PipelineStage::Begin(DdpEngine* ddp) {
  GS_RETURN_IF_ERROR(ModelShare::Begin(ddp));
  return place_.link->Connect(
      absl::StrCat("of ", model().blocks().size(), " blocks, cut before ", SplitToString(split_),
                   ", ", PipelineScheduleName(options_.pipeline.schedule)),
      Deadline::In(options_.timeout));
}

absl::StatusOr<BatchFigures> PipelineStage::Run(const PipelineStep& step, StageTimes* times) {
  const BlockRange blocks = own();
  Batch batch;
  PipelineLoss loss(step);
  StageWork work;
  work.begin = [&](int64_t i) -> absl::StatusOr<at::Tensor> {
    GS_ASSIGN_OR_RETURN(batch, step.next(i));
    return batch.images;
  };
  work.seed = [&](int64_t i) { model().BeginStep(step.seed(i)); };
  work.forward = [&](const at::Tensor& x) {
    return ForwardBlocks(compute(), model(), blocks.first, blocks.end, x);
  };
  work.objective = [&](const at::Tensor& logits) { return loss.Objective(logits, batch.labels); };
  work.figures = [&] { return loss.Figures(); };
  work.backward = [&](bool last, const std::function<void()>& run) {
    if (last) {
      GS_RETURN_IF_ERROR(ddp().BeginStep(step.options));
      run();
      return absl::OkStatus();
    }
    const auto no_sync = ddp().NoSync();
    run();
    return absl::OkStatus();
  };
  GS_ASSIGN_OR_RETURN(const at::Tensor figures,
                      RunStageStep(*place_.link, options_.pipeline.schedule, step.options.step,
                                   step.micro_batches, work, options_.timeout, times));
  waited_ += times->waited;
  return PipelineLoss::Read(figures);
}

absl::StatusOr<at::Tensor> PipelineStage::TestLogits(const at::Tensor& inputs) {
  const BlockRange blocks = own();
  GS_ASSIGN_OR_RETURN(const at::Tensor output,
                      PassTestBatch(
                          *place_.link, test_batches_++, inputs,
                          [&](const at::Tensor& x) {
                            return ForwardBlocks(compute(), model(), blocks.first, blocks.end, x);
                          },
                          options_.timeout));
  return is_last() ? output : at::Tensor();
}

// Each stage goes on with the hash where the one before left it.
absl::StatusOr<std::string> PipelineStage::ParamsSha256(Deadline deadline) {
  Sha256 hash;
  for (size_t i = 0; i < tensors_.size();) {
    const int stage = stage_of_[i];
    const bool mine = stage == place_.link->stage();
    for (; i < tensors_.size() && stage_of_[i] == stage; ++i) {
      if (!mine) continue;
      const at::Tensor row_major = tensors_[i].detach().contiguous();
      hash.Update(row_major.data_ptr(), row_major.nbytes());
    }
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> states,
                        place_.stages->AllGather(mine ? hash.state() : "", deadline));
    if (!hash.Restore(states[stage])) {
      return absl::DataLossError(
          absl::StrCat("the hash of stage ", stage, ": found ", states[stage].size(), " bytes"));
    }
  }
  return hash.HexDigest();
}

absl::Status PipelineStage::Finish() { return place_.link->Finish(Deadline::In(options_.timeout)); }

ShareTraffic PipelineStage::traffic() const {
  return {waited_, place_.link->bytes_sent(), place_.link->bytes_received()};
}

}  // namespace gradsync
