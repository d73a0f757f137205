#include "worker/train/decay_groups.h"

#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

using Names = std::set<std::string>;

bool Fits(absl::string_view name, absl::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == pattern.npos) return name == pattern;
  if (!absl::StartsWith(name, pattern.substr(0, star))) return false;
  const absl::string_view rest = pattern.substr(star + 1);
  for (size_t skipped = star; skipped <= name.size(); ++skipped) {
    if (Fits(name.substr(skipped), rest)) return true;
  }
  return false;
}

// The class alone: what surrounds it may be called anything.
bool IsNorm(const torch::nn::Module& module) {
  const std::string& type = module.name();
  const size_t scope = type.rfind("::");
  return absl::StrContains(scope == type.npos ? type : type.substr(scope), "Norm");
}

Names OfNorms(const torch::nn::Module& module) {
  Names names;
  for (const auto& layer : module.named_modules("", /*include_self=*/false)) {
    if (!IsNorm(*layer.value())) continue;
    for (const auto& parameter : layer.value()->named_parameters(/*recurse=*/false)) {
      names.insert(absl::StrCat(layer.key(), ".", parameter.key()));
    }
  }
  return names;
}

bool Excludes(absl::string_view word, const std::string& name, const at::Tensor& parameter,
              const Names& norms) {
  if (word == "norm") return norms.count(name) > 0;
  if (word == "bias") return name == "bias" || absl::EndsWith(name, ".bias");
  if (word == "vectors") return parameter.dim() < 2;
  return Fits(name, word);
}

}  // namespace

absl::StatusOr<std::function<int(const TensorSpec&)>> ExcludeFromDecay(
    const std::vector<std::string>& words, const torch::nn::Module& module,
    OptimizerSpec* optimizer) {
  if (words.empty()) return std::function<int(const TensorSpec&)>();
  const Names norms = OfNorms(module);
  const auto excluded = std::make_shared<Names>();
  for (const std::string& word : words) {
    bool fits = false;
    for (const auto& parameter : module.named_parameters()) {
      if (!parameter.value().requires_grad()) continue;
      if (!Excludes(word, parameter.key(), parameter.value(), norms)) continue;
      excluded->insert(parameter.key());
      fits = true;
    }
    if (!fits) {
      return FlagError(
          "no_weight_decay",
          "norm, bias, vectors or names of parameters, each of which fits one that the "
          "model has",
          word);
    }
  }
  OptimizerGroup without_decay = optimizer->groups[0];
  without_decay.weight_decay = 0;
  optimizer->groups.push_back(without_decay);
  return std::function<int(const TensorSpec&)>(
      [excluded](const TensorSpec& tensor) { return excluded->count(tensor.name) > 0 ? 1 : 0; });
}

}  // namespace gradsync
