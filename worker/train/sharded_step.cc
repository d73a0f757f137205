#include "worker/train/sharded_step.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/flat_parameters.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/train/check_finite.h"

namespace gradsync {

std::vector<std::vector<std::string>> ShardedStep::units() const {
  absl::flat_hash_set<std::string> trainable;
  for (const NamedParameter& parameter : TrainableParametersOf(model())) {
    trainable.insert(parameter.name);
  }
  std::vector<std::vector<std::string>> units;
  for (const ModelBlock& block : model().blocks()) {
    std::vector<std::string>& unit = units.emplace_back();
    for (std::string& name : model().ParametersOf(block)) {
      if (trainable.contains(name)) unit.push_back(std::move(name));
    }
  }
  return units;
}

// After a failure the rest of the step computes with whatever lies in memory, and fails.
void ShardedStep::Need(UnitTurn turn) {
  if (status_.ok()) status_ = ddp().GatherUnit(turn, Deadline::In(timeout_));
}

at::Tensor ShardedStep::Forward(const at::Tensor& images) {
  const int blocks = static_cast<int>(model().blocks().size());
  cuts_.clear();
  at::Tensor x = images;
  for (int block = 0; block < blocks; ++block) {
    Need(ForwardTurn(block, blocks));
    x = ForwardBlocks(compute(), model(), block, block + 1, x);
    if (block + 1 == blocks || !x.requires_grad()) continue;
    cuts_.push_back({block, x, std::make_unique<StageInlet>(x.detach())});
    x = cuts_.back().inlet->input();
  }
  return x;
}

void ShardedStep::Backward(const at::Tensor& objective) {
  const int last = static_cast<int>(model().blocks().size()) - 1;
  Need(BackwardTurn(last));
  objective.backward();
  while (!cuts_.empty()) {
    const Cut cut = std::move(cuts_.back());
    cuts_.pop_back();
    Need(BackwardTurn(cut.block));
    torch::autograd::backward({cut.output}, {cut.inlet->gradient()});
  }
}

absl::StatusOr<at::Tensor> ShardedStep::TestLogits(const at::Tensor& inputs) {
  const int blocks = static_cast<int>(model().blocks().size());
  at::Tensor x = inputs;
  for (int block = 0; block < blocks; ++block) {
    Need(ForwardTurn(block, blocks));
    if (!status_.ok()) return status_;
    if (x.defined()) x = ForwardBlocks(compute(), model(), block, block + 1, x);
  }
  return x;
}

absl::Status ShardedStep::CheckFiniteParameters(const std::string& where, Deadline deadline) {
  const auto check = [&](const std::string& name, const at::Tensor& parameter) {
    return CheckFinite(where, name, parameter);
  };
  GS_RETURN_IF_ERROR(ddp().VisitParameters(check, deadline));
  return CheckFinite(where, model());  // for the buffers
}

absl::StatusOr<std::string> ShardedStep::ParamsSha256(Deadline deadline) {
  return ddp().GatheredSha256(deadline);
}

}  // namespace gradsync
