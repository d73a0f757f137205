#include "worker/train/pipeline_step.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>

#include "ATen/ops/ones_like.h"
#include "ATen/ops/stack.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "c10/core/ScalarType.h"
#include "core/base/monotonic_time.h"
#include "gradsync/ddp/flat_parameters.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/models/loss.h"
#include "worker/pipeline/stage_step.h"
#include "worker/train/forward.h"

namespace gradsync {
namespace {

// The first run of a block sets libraries up.
constexpr int kMeasuredRuns = 2;

// Seconds of forward and backward of each block, in evaluation mode, which leaves running
// statistics alone.
std::vector<double> MeasureBlocks(const ComputeOptions& compute, Model& model,
                                  const std::function<at::Tensor()>& example) {
  const int blocks = static_cast<int>(model.blocks().size());
  std::vector<double> times(blocks);
  model.eval();
  for (int run = 0; run < kMeasuredRuns; ++run) {
    at::Tensor x = example();
    for (int b = 0; b < blocks; ++b) {
      const MonotonicTime start = MonotonicTime::Now();
      const bool differentiable = b > 0;
      std::unique_ptr<StageInlet> inlet;
      if (differentiable) inlet = std::make_unique<StageInlet>(x);
      const at::Tensor y =
          ForwardBlocks(compute, model, b, b + 1, differentiable ? inlet->input() : x);
      if (y.requires_grad()) torch::autograd::backward({y}, {at::ones_like(y)});
      times[b] = absl::ToDoubleSeconds(MonotonicTime::Now() - start);
      x = y.detach();
    }
  }
  for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
  model.train();
  return times;
}

}  // namespace

absl::StatusOr<StageSplit> SplitModel(const std::string& text, int stages,
                                      const ComputeOptions& compute, Model& model,
                                      const std::function<at::Tensor()>& example) {
  if (text != "auto") return ParseSplit(text, static_cast<int>(model.blocks().size()), stages);
  try {
    return BalanceBlocks(MeasureBlocks(compute, model, example), stages);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("measuring the blocks: LibTorch: ", e.what()));
  }
}

absl::StatusOr<std::vector<int>> StagesOfParameters(Model& model, const StageSplit& split) {
  std::map<std::string, int> stage_of;
  for (size_t s = 0; s < split.size(); ++s) {
    for (int b = split[s].first; b < split[s].end; ++b) {
      for (const std::string& name : model.ParametersOf(model.blocks()[b])) {
        const auto [entry, is_new] = stage_of.emplace(name, static_cast<int>(s));
        if (is_new || entry->second == static_cast<int>(s)) continue;
        return absl::FailedPreconditionError(
            absl::StrCat("--split: stages ", entry->second, " and ", s, " would share parameter ",
                         name, ": expected a cut that leaves it to one"));
      }
    }
  }
  std::vector<int> stages;
  for (const NamedParameter& parameter : TrainableParametersOf(model)) {
    const auto found = stage_of.find(parameter.name);
    if (found == stage_of.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter ", parameter.name, " belongs to no block of the model"));
    }
    stages.push_back(found->second);
  }
  for (size_t s = 0; s < split.size(); ++s) {
    if (std::count(stages.begin(), stages.end(), static_cast<int>(s)) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--split: expected parameters in every stage, found none in stage ", s,
                     ", blocks ", split[s].first, " to ", split[s].end - 1));
  }
  return stages;
}

at::Tensor PipelineLoss::Objective(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor loss = CrossEntropy(logits, labels, step_.label_smoothing);
  sum_.Add({loss.detach(), CorrectPredictions(logits, labels).to(at::kFloat)});
  return step_.micro_batches > 1 ? loss / static_cast<double>(step_.micro_batches) : loss;
}

at::Tensor PipelineLoss::Figures() {
  const BatchFigures figures = sum_.OfStep();
  return at::stack({figures.loss.reshape({}), figures.correct.reshape({})});
}

absl::StatusOr<BatchFigures> PipelineLoss::Read(const at::Tensor& figures) {
  if (figures.dim() != 1 || figures.numel() != 2 || figures.scalar_type() != at::kFloat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the figures of a step: expected 2 floats in a row, found ", figures.numel(), " of type ",
        c10::toString(figures.scalar_type()), " in ", figures.dim(), " dimensions"));
  }
  return BatchFigures{figures[0], figures[1]};
}

}  // namespace gradsync
