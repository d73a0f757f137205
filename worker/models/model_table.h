// The models by name: the one list that --model, --help and error messages are made of.
#ifndef GRADSYNC_WORKER_MODELS_MODEL_TABLE_H_
#define GRADSYNC_WORKER_MODELS_MODEL_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

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

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MODEL_TABLE_H_
