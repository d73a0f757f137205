#include "worker/models/create_model.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "core/base/errors.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "worker/models/mlp.h"
#include "worker/models/model_options.h"
#include "worker/models/resnet.h"
#include "worker/models/transformer.h"
#include "worker/models/vgg.h"

namespace gradsync {
namespace {

constexpr int64_t kClassesWithoutData = 10;

absl::Status CheckGpt(const ModelOptions& options) {
  for (const auto& [flag, value] : {std::make_pair("gpt_width", options.gpt_width),
                                    std::make_pair("gpt_layers", options.gpt_layers),
                                    std::make_pair("gpt_heads", options.gpt_heads),
                                    std::make_pair("gpt_context", options.gpt_context)}) {
    if (value < 1) return FlagError(flag, "at least 1", absl::StrCat(value));
  }
  if (options.gpt_width % options.gpt_heads == 0) return absl::OkStatus();
  return FlagError("gpt_width", absl::StrCat("a multiple of --gpt_heads=", options.gpt_heads),
                   absl::StrCat(options.gpt_width));
}

std::shared_ptr<Model> CreateResNet(const ModelOptions& options,
                                    const ResNetArchitecture& architecture) {
  ResNetOptions resnet;
  resnet.architecture = architecture;
  resnet.stem = options.stem == "cifar" ? ResNetStem::kCifar : ResNetStem::kImageNet;
  resnet.classes = options.classes;
  resnet.seed = options.seed;
  return MakeResNet(resnet);
}

std::shared_ptr<Model> CreateVgg(const ModelOptions& options, bool batch_norm) {
  VggOptions vgg;
  vgg.batch_norm = batch_norm;
  vgg.classes = options.classes;
  vgg.dropout = options.dropout.value_or(vgg.dropout);
  vgg.seed = options.seed;
  return MakeVgg(vgg);
}

absl::StatusOr<std::shared_ptr<Model>> CreateVit(const ModelOptions& options) {
  VitOptions vit;
  vit.image_size = options.image_size;
  vit.classes = options.classes;
  vit.dropout = options.dropout.value_or(vit.dropout);
  vit.seed = options.seed;
  if (vit.image_size < vit.patch || vit.image_size % vit.patch != 0) {
    return FlagError(
        "model",
        absl::StrCat("one for --data with images of ", vit.image_size, "x", vit.image_size,
                     " (this one needs a multiple of ", vit.patch, ", such as synthetic:224)"),
        options.name);
  }
  return MakeVit(vit);
}

absl::StatusOr<std::shared_ptr<Model>> CreateGpt(const ModelOptions& options) {
  GS_RETURN_IF_ERROR(CheckGpt(options));
  GptOptions gpt;
  gpt.width = options.gpt_width;
  gpt.layers = options.gpt_layers;
  gpt.heads = options.gpt_heads;
  gpt.context = options.gpt_context;
  gpt.vocabulary = options.classes;
  gpt.dropout = options.dropout.value_or(gpt.dropout);
  gpt.seed = options.seed;
  return MakeGpt(gpt);
}

absl::StatusOr<std::shared_ptr<Model>> CreateMlp(const ModelOptions& options) {
  MlpOptions mlp;
  for (int64_t width : options.hidden) {
    if (width < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("model: expected hidden layers of at least 1 unit, found ", width));
    }
  }
  mlp.inputs = 3 * options.image_size * options.image_size;
  mlp.hidden = options.hidden;
  mlp.classes = options.classes;
  mlp.seed = options.seed;
  return MakeMlp(mlp);
}

// In numbers that may be beyond those of an integer.
double LeastParameters(const ModelOptions& options) {
  const ModelEntry* const entry = FindModel(options.name);
  if (entry == nullptr) return 0;
  const double classes =
      static_cast<double>(options.classes == 0 ? kClassesWithoutData : options.classes);
  const double width = static_cast<double>(options.gpt_width);
  switch (entry->family) {
    case ModelFamily::kResNet:
      return classes * (entry->resnet.bottleneck ? 2049 : 513);
    case ModelFamily::kVgg:
      return classes * 4097;
    case ModelFamily::kViT:
      return classes * static_cast<double>(VitOptions().width + 1);
    case ModelFamily::kGpt:
      return (2 * classes + static_cast<double>(options.gpt_context) +
              12 * static_cast<double>(options.gpt_layers) * width) *
             width;
    case ModelFamily::kMlp:
      break;
  }
  double parameters = 0;
  double in =
      3.0 * static_cast<double>(options.image_size) * static_cast<double>(options.image_size);
  for (int64_t hidden : options.hidden) {
    parameters += (in + 1) * static_cast<double>(hidden);
    in = static_cast<double>(hidden);
  }
  return parameters + (in + 1) * classes;
}

uint64_t LeastBytes(const ModelOptions& options, int times) {
  // So that the largest numbers still are some of an integer.
  return static_cast<uint64_t>(
      std::clamp(LeastParameters(options) * sizeof(float) * times, 0.0, 9e18));
}

// The flags that make it large.
std::string SizeFlags(const ModelOptions& options) {
  std::string flags = absl::StrCat("--model=", options.name, ", --classes=", options.classes);
  const ModelEntry* const entry = FindModel(options.name);
  if (entry != nullptr && entry->family == ModelFamily::kGpt) {
    absl::StrAppend(&flags, ", --gpt_width=", options.gpt_width,
                    ", --gpt_layers=", options.gpt_layers, ", --gpt_context=", options.gpt_context);
  }
  return flags;
}

absl::StatusOr<std::shared_ptr<Model>> CreateByName(const ModelOptions& options) {
  const ModelEntry* const entry = FindModel(options.name);
  if (entry == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown model '", options.name, "': expected ", ListOfModels()));
  }
  switch (entry->family) {
    case ModelFamily::kResNet:
      return CreateResNet(options, entry->resnet);
    case ModelFamily::kVgg:
      return CreateVgg(options, entry->batch_norm);
    case ModelFamily::kViT:
      return CreateVit(options);
    case ModelFamily::kGpt:
      return CreateGpt(options);
    case ModelFamily::kMlp:
      return CreateMlp(options);
  }
  return absl::InternalError(absl::StrCat("model ", options.name, " has no family"));
}

// 11181642 as 11,181,642.
std::string Grouped(int64_t count) {
  std::string text = absl::StrCat(count);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

std::string ShapeOf(const at::Tensor& t) { return absl::StrJoin(t.sizes(), "x"); }

}  // namespace

absl::Status CheckModelMemory(const ModelOptions& options, absl::string_view what, int times) {
  const std::string named = absl::StrCat(SizeFlags(options), ": ", what);
  GS_RETURN_IF_ERROR(CheckMemory(named, LeastBytes(options, times)));
  return CheckAddresses(named, LeastBytes(options, times));
}

absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& given) {
  ModelOptions options = given;
  if (options.classes == 0) options.classes = kClassesWithoutData;
  if (options.classes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: expected at least 1 class, found ", options.classes));
  }
  if (options.stem != "imagenet" && options.stem != "cifar") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown stem '", options.stem, "': expected imagenet or cifar"));
  }
  const double dropout = options.dropout.value_or(0);
  if (!(dropout >= 0 && dropout < 1)) {
    return FlagError("dropout", "at least 0 and less than 1", absl::StrCat(dropout));
  }
  GS_RETURN_IF_ERROR(CheckModelMemory(options, "weights", /*times=*/1));
  std::shared_ptr<Model> model;
  try {
    GS_ASSIGN_OR_RETURN(model, CreateByName(options));
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat(SizeFlags(options), ": expected that LibTorch makes the weights (at least ",
                     LeastBytes(options, 1), " bytes), found: ", FirstLine(e.what())));
  }
  model->set_activation_checkpointing(options.activation_checkpointing);
  return model;
}

std::string DescribeModel(const std::string& name, Model& model, const at::Tensor& example) {
  const c10::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  std::map<std::string, int64_t> sizes;
  int64_t total = 0;
  for (const auto& parameter : model.named_parameters()) {
    sizes[parameter.key()] = parameter.value().numel();
    total += parameter.value().numel();
  }
  size_t width = 5;
  for (const ModelBlock& block : model.blocks()) width = std::max(width, block.name.size());
  std::string table = absl::StrFormat("%5s  %-*s %14s  output of an input of %s\n", "block", width,
                                      "name", "parameters", ShapeOf(example));
  at::Tensor x = example;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const ModelBlock& block = model.blocks()[i];
    int64_t parameters = 0;
    for (const std::string& member : model.ParametersOf(block)) parameters += sizes[member];
    x = block.forward(x);
    absl::StrAppendFormat(&table, "%5d  %-*s %14s  %s\n", i, width, block.name, Grouped(parameters),
                          ShapeOf(x));
  }
  if (was_training) model.train();
  absl::StrAppendFormat(&table, "%s: %d blocks, %s parameters, %.1f MB of gradients\n", name,
                        model.blocks().size(), Grouped(total), 4e-6 * static_cast<double>(total));
  return table;
}

}  // namespace gradsync
