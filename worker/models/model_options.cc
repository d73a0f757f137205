#include "worker/models/model_options.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

ModelEntry ResNetEntry(const char* name, bool bottleneck, std::array<int, 4> blocks,
                       int64_t groups = 1, int64_t width_per_group = 64) {
  ModelEntry entry;
  entry.name = name;
  entry.family = ModelFamily::kResNet;
  entry.resnet = {bottleneck, blocks, groups, width_per_group};
  return entry;
}

ModelEntry VggEntry(const char* name, bool batch_norm) {
  ModelEntry entry;
  entry.name = name;
  entry.family = ModelFamily::kVgg;
  entry.batch_norm = batch_norm;
  return entry;
}

ModelEntry Entry(const char* name, ModelFamily family, InputKind input = InputKind::kImages) {
  ModelEntry entry;
  entry.name = name;
  entry.family = family;
  entry.input = input;
  return entry;
}

std::vector<ModelEntry> MakeModels() {
  return {
      ResNetEntry("resnet18", false, {2, 2, 2, 2}),
      ResNetEntry("resnet34", false, {3, 4, 6, 3}),
      ResNetEntry("resnet50", true, {3, 4, 6, 3}),
      ResNetEntry("resnet101", true, {3, 4, 23, 3}),
      ResNetEntry("resnet152", true, {3, 8, 36, 3}),
      ResNetEntry("resnext50_32x4d", true, {3, 4, 6, 3}, 32, 4),
      ResNetEntry("resnext101_32x8d", true, {3, 4, 23, 3}, 32, 8),
      ResNetEntry("resnext101_64x4d", true, {3, 4, 23, 3}, 64, 4),
      ResNetEntry("wide_resnet50_2", true, {3, 4, 6, 3}, 1, 128),
      ResNetEntry("wide_resnet101_2", true, {3, 4, 23, 3}, 1, 128),
      VggEntry("vgg16", false),
      VggEntry("vgg16_bn", true),
      Entry("vit_s_16", ModelFamily::kViT),
      Entry("gpt", ModelFamily::kGpt, InputKind::kTokens),
      Entry("mlp", ModelFamily::kMlp),
  };
}

}  // namespace

const std::vector<ModelEntry>& Models() {
  static const auto* const models = new std::vector<ModelEntry>(MakeModels());
  return *models;
}

const ModelEntry* FindModel(absl::string_view name) {
  for (const ModelEntry& entry : Models()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelEntry& entry : Models()) names.push_back(entry.name);
  return names;
}

std::string ListOfModels() {
  const std::vector<std::string> names = ModelNames();
  std::string list = names[0];
  for (size_t i = 1; i < names.size(); ++i) {
    absl::StrAppend(&list, i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  return list;
}

absl::Status CheckSlices(const ModelOptions& options, int slices, bool split_sequence) {
  const std::string multiple = absl::StrCat("a multiple of tensor=", slices, " (--mesh)");
  const ModelEntry* const entry = FindModel(options.name);
  if (entry == nullptr || entry->family != ModelFamily::kGpt) {
    return FlagError("model", absl::StrCat("gpt with tensor=", slices, " (--mesh)"), options.name);
  }
  if (options.gpt_heads % slices != 0) {
    return FlagError("gpt_heads", multiple, absl::StrCat(options.gpt_heads));
  }
  if (options.classes % slices != 0) {
    return FlagError("data", absl::StrCat("a vocabulary of ", multiple),
                     absl::StrCat(options.classes, " tokens"));
  }
  if (split_sequence && options.gpt_context % slices != 0) {
    return FlagError("gpt_context", absl::StrCat(multiple, " with --sequence_parallel"),
                     absl::StrCat(options.gpt_context));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
