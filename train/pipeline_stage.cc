#include "train/pipeline_stage.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "ATen/ops/ones_like.h"
#include "ATen/ops/stack.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/deadline.h"
#include "base/monotonic_time.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "ddp/flat_parameters.h"
#include "models/loss.h"
#include "pipeline/stage_inlet.h"
#include "torch/csrc/autograd/autograd.h"

namespace gradsync {
namespace {

constexpr absl::string_view kSplit = "split ";

// The first run of a block sets libraries up.
constexpr int kMeasuredRuns = 2;

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
  if (all_ranks_->rank() == 0) own = OwnSplit();
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

absl::StatusOr<StageSplit> PipelineStage::OwnSplit() {
  const int stages = place_.link->stages();
  const std::string& text = options_.pipeline.split;
  if (text != "auto") return ParseSplit(text, static_cast<int>(model().blocks().size()), stages);
  try {
    return BalanceBlocks(MeasureBlocks(), stages);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("measuring the blocks: LibTorch: ", e.what()));
  }
}

// Seconds of forward and backward of each block, in evaluation mode, which leaves running
// statistics alone.
std::vector<double> PipelineStage::MeasureBlocks() {
  const int blocks = static_cast<int>(model().blocks().size());
  std::vector<double> times(blocks);
  model().eval();
  for (int run = 0; run < kMeasuredRuns; ++run) {
    at::Tensor x = options_.example();
    for (int b = 0; b < blocks; ++b) {
      const MonotonicTime start = MonotonicTime::Now();
      const bool differentiable = b > 0;
      std::unique_ptr<StageInlet> inlet;
      if (differentiable) inlet = std::make_unique<StageInlet>(x);
      const at::Tensor y =
          ForwardBlocks(compute(), model(), b, b + 1, differentiable ? inlet->input() : x);
      if (y.requires_grad()) torch::autograd::backward({y}, {at::ones_like(y)});
      times[b] = absl::ToDoubleSeconds(MonotonicTime::Now() - start);
      x = y.detach();
    }
  }
  for (const at::Tensor& parameter : model().parameters()) parameter.mutable_grad() = at::Tensor();
  model().train();
  return times;
}

absl::Status PipelineStage::AssignParameters() {
  std::map<std::string, int> stage_of;
  for (size_t s = 0; s < split_.size(); ++s) {
    for (int b = split_[s].first; b < split_[s].end; ++b) {
      for (const std::string& name : model().ParametersOf(model().blocks()[b])) {
        const auto [entry, is_new] = stage_of.emplace(name, static_cast<int>(s));
        if (is_new || entry->second == static_cast<int>(s)) continue;
        return absl::FailedPreconditionError(
            absl::StrCat("--split: stages ", entry->second, " and ", s, " would share parameter ",
                         name, ": expected a cut that leaves it to one"));
      }
    }
  }
  for (const NamedParameter& parameter : TrainableParametersOf(model())) {
    const auto found = stage_of.find(parameter.name);
    if (found == stage_of.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter ", parameter.name, " belongs to no block of the model"));
    }
    stage_of_.push_back(found->second);
    tensors_.push_back(parameter.tensor);
    if (found->second == place_.link->stage()) parameters_.push_back(parameter.name);
  }
  for (size_t s = 0; s < split_.size(); ++s) {
    if (std::count(stage_of_.begin(), stage_of_.end(), static_cast<int>(s)) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--split: expected parameters in every stage, found none in stage ", s,
                     ", blocks ", split_[s].first, " to ", split_[s].end - 1));
  }
  return absl::OkStatus();
}

absl::Status PipelineStage::Begin(DistributedDataParallel* ddp) {
  GS_RETURN_IF_ERROR(ModelShare::Begin(ddp));
  return place_.link->Connect(
      absl::StrCat("of ", model().blocks().size(), " blocks, cut before ", SplitToString(split_),
                   ", ", PipelineScheduleName(options_.pipeline.schedule)),
      Deadline::In(options_.timeout));
}

absl::StatusOr<BatchFigures> PipelineStage::Run(const Step& step, StageTimes* times) {
  const BlockRange blocks = own();
  Batch batch;
  FigureSum sum;
  StageWork work;
  work.begin = [&](int64_t i) -> absl::StatusOr<at::Tensor> {
    GS_ASSIGN_OR_RETURN(batch, step.next(i));
    return batch.images;
  };
  work.seed = step.seed;
  work.forward = [&](const at::Tensor& x) {
    return ForwardBlocks(compute(), model(), blocks.first, blocks.end, x);
  };
  work.objective = [&](const at::Tensor& logits) {
    const at::Tensor loss = CrossEntropy(logits, batch.labels, step.label_smoothing);
    sum.Add({loss.detach(), CorrectPredictions(logits, batch.labels).to(at::kFloat)});
    return step.micro_batches > 1 ? loss / static_cast<double>(step.micro_batches) : loss;
  };
  work.figures = [&] {
    const BatchFigures figures = sum.OfStep();
    return at::stack({figures.loss.reshape({}), figures.correct.reshape({})});
  };
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
  if (figures.numel() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the figures of a step: expected 2, found ", figures.numel()));
  }
  return BatchFigures{figures[0], figures[1]};
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
