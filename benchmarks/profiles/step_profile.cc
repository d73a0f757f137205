#include "benchmarks/profiles/step_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/sharding.h"
#include "core/plan/step_order.h"

namespace gradsync {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view expected, double found) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", found ", found));
}

// `profile`, if it is one; `what` is named in errors.
absl::StatusOr<proto::StepProfile> Checked(proto::StepProfile profile, absl::string_view what) {
  const absl::Status valid = ValidateStepProfile(profile);
  if (valid.ok()) return profile;
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", valid.message()));
}

absl::Status CheckBlock(const proto::ProfiledBlock& block) {
  const std::pair<const char*, double> numbers[] = {{"forward_us", block.forward_us()},
                                                    {"backward_us", block.backward_us()},
                                                    {"output_bytes", block.output_bytes()},
                                                    {"kept_bytes", block.kept_bytes()}};
  for (const auto& number : numbers) {
    if (!std::isfinite(number.second) || number.second < 0) {
      return Refuse(absl::StrCat("block ", block.name(), ": ", number.first), "at least 0",
                    number.second);
    }
  }
  return absl::OkStatus();
}

// Either there are none, or each tensor belongs to one.
absl::Status CheckBlocks(const proto::StepProfile& profile) {
  if (profile.blocks().empty()) return absl::OkStatus();
  absl::flat_hash_map<std::string, int> times;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) times[tensor.name()] = 0;
  for (const proto::ProfiledBlock& block : profile.blocks()) {
    GS_RETURN_IF_ERROR(CheckBlock(block));
    for (const std::string& name : block.tensors()) {
      const auto found = times.find(name);
      if (found != times.end() && ++found->second == 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block.name(), ": expected the profile's tensors, each in one ",
                       "block, found ", name));
    }
  }
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    if (times[tensor.name()] == 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("blocks: expected each tensor in one, found ", tensor.name(), " in none"));
  }
  return absl::OkStatus();
}

// A slice's meetings follow from the GPT's shape.
absl::Status CheckSlicedGpt(const proto::StepProfile& profile) {
  if (profile.slices() <= 1) return absl::OkStatus();
  const proto::GptShape& gpt = profile.gpt();
  if (profile.blocks_size() != gpt.layers() + 2) {
    return Refuse("gpt.layers", absl::StrCat(profile.blocks_size() - 2, " with so many blocks"),
                  static_cast<double>(gpt.layers()));
  }
  if (gpt.width() < 1) return Refuse("gpt.width", "at least 1", static_cast<double>(gpt.width()));
  if (gpt.context() < 1) {
    return Refuse("gpt.context", "at least 1", static_cast<double>(gpt.context()));
  }
  return absl::OkStatus();
}

// By block.
struct BackwardsOfBlocks {
  std::vector<double> begin;
  std::vector<double> end;
};

// In the whole backward a block's gradients end with its last one, where the next block's begin.
// `blocks` is by tensor.
BackwardsOfBlocks BackwardsOf(const proto::StepProfile& profile, const std::vector<int>& blocks) {
  BackwardsOfBlocks times;
  times.end.assign(profile.blocks_size(), 0);
  for (size_t i = 0; i < blocks.size(); ++i) {
    double& end = times.end[blocks[i]];
    end = std::max(end, profile.tensors(static_cast<int>(i)).ready_us());
  }
  times.begin.resize(times.end.size());
  double before = profile.forward_us();
  for (size_t b = times.end.size(); b-- > 0;) {
    times.begin[b] = before;
    before = std::max(before, times.end[b]);
  }
  return times;
}

absl::StatusOr<std::vector<std::vector<int>>> UnitsOf(const proto::StepProfile& profile,
                                                      const Plan& plan) {
  std::vector<std::vector<std::string>> units;
  for (const proto::ProfiledBlock& block : profile.blocks()) {
    units.emplace_back(block.tensors().begin(), block.tensors().end());
  }
  return UnitBuckets(plan, units);
}

}  // namespace

absl::StatusOr<proto::StepProfile> ParseStepProfile(absl::string_view json,
                                                    absl::string_view what) {
  proto::StepProfile profile;
  GS_RETURN_IF_ERROR(ParseJson(json, what, &profile));
  return Checked(std::move(profile), what);
}

absl::StatusOr<proto::StepProfile> ReadStepProfile(const std::string& path) {
  proto::StepProfile profile;
  GS_RETURN_IF_ERROR(ReadJson(path, &profile));
  return Checked(std::move(profile), path);
}

absl::Status ValidateStepProfile(const proto::StepProfile& profile) {
  if (profile.model().empty()) {
    return absl::InvalidArgumentError("model: expected a name, found none");
  }
  if (profile.tensors().empty()) {
    return absl::InvalidArgumentError("tensors: expected at least one, found none");
  }
  const std::pair<const char*, double> times[] = {{"forward_us", profile.forward_us()},
                                                  {"backward_us", profile.backward_us()},
                                                  {"update_us", profile.update_us()}};
  for (const auto& time : times) {
    if (!std::isfinite(time.second) || time.second < 0) {
      return Refuse(time.first, "at least 0", time.second);
    }
  }
  const double end = profile.forward_us() + profile.backward_us();
  double before = 0;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    if (tensor.numel() < 1) {
      return Refuse(tensor.name() + ".numel", "at least 1", tensor.numel());
    }
    if (!(tensor.ready_us() >= before && tensor.ready_us() <= end)) {
      return Refuse(
          tensor.name() + ".ready_us",
          absl::StrCat("between the last tensor's ", before, " and the end of backward ", end),
          tensor.ready_us());
    }
    before = tensor.ready_us();
  }
  GS_RETURN_IF_ERROR(CheckSlicedGpt(profile));
  return CheckBlocks(profile);
}

absl::Status CheckHasBlocks(const proto::StepProfile& profile) {
  if (!profile.blocks().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "profile of ", profile.model(),
      ": expected blocks, which stages and --zero=3 go by, found none; ",
      "record it again: bazel run -c opt //benchmarks:train_bench -- --record=FILE --model=",
      profile.model()));
}

absl::Status CheckWhole(const proto::StepProfile& profile) {
  if (profile.slices() <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "profile of ", profile.model(), ": expected one of the whole model, found one of ",
      profile.slices(), " slices, which is for --mesh=tensor=", profile.slices(), " of predict"));
}

absl::StatusOr<proto::StepProfile> WithCheckpointing(const proto::StepProfile& profile) {
  GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  proto::StepProfile checkpointed = profile;
  checkpointed.set_activation_checkpointing(true);
  std::vector<double> later(profile.blocks_size(), 0);  // by block: what its backward ends later
  double sum = 0;
  for (int b = profile.blocks_size() - 1; b >= 0; --b) {
    proto::ProfiledBlock& block = *checkpointed.mutable_blocks(b);
    if (block.recomputes()) {
      sum += block.forward_us();
      block.set_backward_us(block.backward_us() + block.forward_us());
      block.set_recomputed_bytes(std::max(0.0, block.kept_bytes() - block.output_bytes()));
      block.set_kept_bytes(block.output_bytes());
    }
    later[b] = sum;
  }
  if (sum == 0) {
    return FlagError("activation_checkpointing",
                     absl::StrCat("false with a profile of ", profile.model(),
                                  " that does not say which blocks are recomputed"),
                     "true");
  }
  const std::vector<int> blocks = BlocksOfTensors(profile);
  double latest = 0;
  for (int i = 0; i < profile.tensors_size(); ++i) {
    proto::ProfiledTensor& tensor = *checkpointed.mutable_tensors(i);
    latest = std::max(latest, tensor.ready_us() + later[blocks[i]]);
    tensor.set_ready_us(latest);
  }
  checkpointed.set_backward_us(profile.backward_us() + sum);
  return checkpointed;
}

std::vector<int> BlocksOfTensors(const proto::StepProfile& profile) {
  absl::flat_hash_map<std::string, int> block_of;
  for (int b = 0; b < profile.blocks_size(); ++b) {
    for (const std::string& name : profile.blocks(b).tensors()) block_of[name] = b;
  }
  std::vector<int> blocks;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    blocks.push_back(block_of[tensor.name()]);
  }
  return blocks;
}

std::vector<double> ReadyInBlockUs(const proto::StepProfile& profile) {
  const std::vector<int> blocks = BlocksOfTensors(profile);
  const BackwardsOfBlocks times = BackwardsOf(profile, blocks);
  std::vector<double> ready;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int b = blocks[i];
    const double length = times.end[b] - times.begin[b];
    const double passed = profile.tensors(static_cast<int>(i)).ready_us() - times.begin[b];
    const double share = length > 0 ? std::min(1.0, std::max(0.0, passed / length)) : 1;
    ready.push_back(share * profile.blocks(b).backward_us());
  }
  return ready;
}

absl::StatusOr<Plan> WithZero(const Plan& plan, const proto::StepProfile& profile, int zero) {
  BucketSlots slots;
  if (zero >= 2) slots.gradients = kZeroGradientSlots;
  if (zero >= 3) {
    GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
    GS_ASSIGN_OR_RETURN(const std::vector<std::vector<int>> units, UnitsOf(profile, plan));
    slots.parameters = ParameterSlotsFor(units);
  }
  return plan.WithSlots(slots);
}

absl::StatusOr<ComputedStep> ComputedStepUs(const proto::StepProfile& profile, const Plan& plan) {
  ComputedStep step;
  step.bucket_ready = BucketReadyUs(profile, plan);
  for (const BucketPlan& bucket : plan.buckets()) {
    step.bucket_begin.push_back(profile.tensors(bucket.tensors.front().tensor).ready_us());
  }
  if (plan.slots().parameters == 0) return step;
  GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  GS_ASSIGN_OR_RETURN(step.units, UnitsOf(profile, plan));
  double blocks_us = 0;
  for (const proto::ProfiledBlock& block : profile.blocks()) blocks_us += block.forward_us();
  const double factor = blocks_us > 0 ? profile.forward_us() / blocks_us : 0;
  double before = 0;
  for (const proto::ProfiledBlock& block : profile.blocks()) {
    step.turn_begin.push_back(std::min(factor * before, profile.forward_us()));
    before += block.forward_us();
  }
  const BackwardsOfBlocks backwards = BackwardsOf(profile, BlocksOfTensors(profile));
  step.turn_begin.insert(step.turn_begin.end(), backwards.begin.rbegin(), backwards.begin.rend());
  return step;
}

absl::StatusOr<Plan> ProfilePlan(const proto::StepProfile& profile, const PlanOptions& options,
                                 double momentum) {
  std::vector<TensorSpec> tensors;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    TensorSpec spec;
    spec.name = tensor.name();
    spec.sizes = {tensor.numel()};
    spec.strides = {1};
    tensors.push_back(std::move(spec));
  }
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerKind::kSgd;
  optimizer.groups.emplace_back().momentum = momentum;
  return Plan::Create(std::move(tensors), order, std::move(optimizer), options);
}

std::vector<double> BucketReadyUs(const proto::StepProfile& profile, const Plan& plan) {
  std::vector<double> ready;
  double latest = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (const PlacedTensor& placed : bucket.tensors) {
      latest = std::max(latest, profile.tensors(placed.tensor).ready_us());
    }
    ready.push_back(latest);
  }
  return ready;
}

}  // namespace gradsync
