#include "worker/models/model.h"

#include <utility>

#include "c10/core/GradMode.h"
#include "core/base/random.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

constexpr uint64_t kStepPurpose = 0x73746570;

bool IsMember(const ModelBlock& block, const std::string& name) {
  for (const std::string& member : block.members) {
    if (name == member || name.rfind(member + ".", 0) == 0) return true;
  }
  return false;
}

}  // namespace

at::Tensor Model::forward(at::Tensor input) {
  return ForwardBlocks(0, static_cast<int>(blocks_.size()), std::move(input));
}

at::Tensor Model::ForwardBlocks(int first, int end, at::Tensor input) {
  const bool recompute = checkpointing_ && is_training() && c10::GradMode::is_enabled();
  at::Tensor x = std::move(input);
  for (int i = first; i < end; ++i) {
    const bool this_one = recompute && blocks_[i].recompute;
    x = this_one ? RunRecomputed(recomputed_[i], x) : blocks_[i].forward(x);
  }
  return x;
}

void Model::BeginStep(uint64_t seed) {
  for (size_t part = 0; part < parts_.size(); ++part) BeginPart(static_cast<int>(part), seed);
}

void Model::BeginPart(int part, uint64_t seed) {
  if (!random_->any_random()) return;
  const std::vector<at::Tensor> tensors = parameters();
  const c10::Device cpu(c10::DeviceType::CPU);
  parts_[part]->Begin(seed, tensors.empty() ? cpu : tensors[0].device());
}

void Model::SeedPartsApart(const std::vector<int>& begins) {
  const auto modules = named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (size_t part = 1; part < begins.size(); ++part) {
    parts_.push_back(random_->Apart());
    const int end = part + 1 < begins.size() ? begins[part + 1] : static_cast<int>(blocks_.size());
    for (int b = begins[part]; b < end; ++b) {
      for (const auto& module : modules) {
        auto* const dropout = module.value()->as<Dropout>();
        if (dropout != nullptr && IsMember(blocks_[b], module.key())) {
          dropout->set_random(parts_.back());
        }
      }
    }
  }
}

// Made when it is wanted: the modules are registered by then.
void Model::set_activation_checkpointing(bool on) {
  checkpointing_ = on;
  if (!on || !recomputed_.empty()) return;
  for (const ModelBlock& block : blocks_) {
    auto recomputed = std::make_shared<Recomputed>();
    recomputed->forward = block.forward;
    for (const auto& module : named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
      auto norm = std::dynamic_pointer_cast<BatchNorm2d>(module.value());
      if (norm != nullptr && IsMember(block, module.key())) {
        recomputed->norms.push_back(std::move(norm));
      }
    }
    recomputed_.push_back(std::move(recomputed));
  }
}

std::vector<std::string> Model::ParametersOf(const ModelBlock& block) const {
  std::vector<std::string> names;
  for (const auto& parameter : named_parameters()) {
    if (IsMember(block, parameter.key())) names.push_back(parameter.key());
  }
  return names;
}

void Model::AddBlock(ModelBlock block) { blocks_.push_back(std::move(block)); }

uint64_t StepSeed(uint64_t seed, int rank, int64_t step, int64_t micro_batch) {
  const uint64_t who = MixBits(static_cast<uint64_t>(rank) + 1);
  return RandomStream(kStepPurpose, seed ^ who, static_cast<uint64_t>(step),
                      static_cast<uint64_t>(micro_batch))
      .Next();
}

}  // namespace gradsync
