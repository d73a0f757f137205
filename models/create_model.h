// From the text of the --model and --stem flags to a model.
#ifndef GRADSYNC_MODELS_CREATE_MODEL_H_
#define GRADSYNC_MODELS_CREATE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "models/model.h"

namespace gradsync {

struct ModelOptions {
  std::string name = "resnet18";  // one of ModelNames()
  // imagenet or cifar (models/resnet.h); what is no ResNet takes either and ignores it
  std::string stem = "imagenet";
  int64_t classes = 10;                // of images; a language model's vocabulary
  int64_t image_size = 32;             // height and width, for those whose parameters depend on it
  uint64_t seed = 0;                   // Equal seeds give equal initial weights.
  std::vector<int64_t> hidden = {32};  // mlp only.
  // gpt only, see models/gpt.h.
  int64_t gpt_width = 384;
  int64_t gpt_layers = 6;
  int64_t gpt_heads = 6;
  int64_t gpt_context = 256;
  // In [0, 1), for those that have dropout; none: the model's own (VGG 0.5, GPT 0.1, ViT 0).
  absl::optional<double> dropout;
  bool activation_checkpointing = false;  // Model::set_activation_checkpointing()
};

// A new model on the CPU, in training mode. The caller owns it. No global state is read or changed.
// A ResNet-50 takes about a second, a VGG-16 some seconds.
//
// Errors: INVALID_ARGUMENT for an unknown name or stem (with those that exist), classes, a hidden
// width or a size of the GPT below 1, a width that is no multiple of the heads, a dropout outside
// [0, 1), or an image size that a vision transformer's patches do not divide.
absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_MODELS_CREATE_MODEL_H_
