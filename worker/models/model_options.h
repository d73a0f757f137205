// The models by name, the one list that --model, --help and error messages are made of; and which
// model a job has.

#ifndef GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_
#define GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// What a model is fed with.
enum class InputKind {
  kImages,  // float [B, C, H, W], one label an image
  kTokens,  // int64 [B, T], one label a position
};

enum class ModelFamily { kResNet, kVgg, kViT, kGpt, kMlp };

// A ResNet as torchvision's arguments describe it.
struct ResNetArchitecture {
  bool bottleneck = false;  // blocks of three convolutions, the last with four times the width
  std::array<int, 4> blocks = {2, 2, 2, 2};
  int64_t groups = 1;            // of the 3x3 convolution of a bottleneck
  int64_t width_per_group = 64;  // where the first stage has 64 planes
};

struct ModelEntry {
  const char* name = "";
  ModelFamily family = ModelFamily::kMlp;
  InputKind input = InputKind::kImages;
  ResNetArchitecture resnet;  // ResNets only
  bool batch_norm = false;    // VGGs only
};

// All of them, in the order in which they are listed.
const std::vector<ModelEntry>& Models();

// Null for a name that no model has.
const ModelEntry* FindModel(absl::string_view name);

std::vector<std::string> ModelNames();

// "resnet18, resnet34, ... or mlp".
std::string ListOfModels();

// Which model, told by flags: what CreateModel() takes.
struct ModelOptions {
  std::string name = "resnet18";  // one of ModelNames()
  // imagenet or cifar (worker/models/resnet.h); what is no ResNet takes either and ignores it
  std::string stem = "imagenet";
  // Outputs: classes of images, a language model's vocabulary. 0: as many as the data has, where
  // they are known (FitModel(), worker/train/job_inputs.h), else 10.
  int64_t classes = 0;
  int64_t image_size = 32;             // height and width, for those whose parameters depend on it
  uint64_t seed = 0;                   // Equal seeds give equal initial weights.
  std::vector<int64_t> hidden = {32};  // mlp only.
  // gpt only, see worker/models/transformer.h.
  int64_t gpt_width = 384;
  int64_t gpt_layers = 6;
  int64_t gpt_heads = 6;
  int64_t gpt_context = 256;
  // In [0, 1), for those that have dropout; none: the model's own (VGG 0.5, GPT 0.1, ViT 0).
  absl::optional<double> dropout;
  bool activation_checkpointing = false;  // Model::set_activation_checkpointing()
};

// Whether the model that `options` describe, with as many classes as its data has, can be cut into
// `slices` (worker/models/slices.h), with `split_sequence` its sequence too. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::Status CheckSlices(const ModelOptions& options, int slices, bool split_sequence);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_
