// Which model, told by flags: what CreateModel() takes.
#ifndef GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_
#define GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"

namespace gradsync {

struct ModelOptions {
  std::string name = "resnet18";  // one of ModelNames()
  // imagenet or cifar (worker/models/resnet.h); what is no ResNet takes either and ignores it
  std::string stem = "imagenet";
  // Outputs: classes of images, a language model's vocabulary. 0: as many as the data has, where they
  // are known (FitModel(), worker/train/job_data.h), else 10.
  int64_t classes = 0;
  int64_t image_size = 32;             // height and width, for those whose parameters depend on it
  uint64_t seed = 0;                   // Equal seeds give equal initial weights.
  std::vector<int64_t> hidden = {32};  // mlp only.
  // gpt only, see worker/models/gpt.h.
  int64_t gpt_width = 384;
  int64_t gpt_layers = 6;
  int64_t gpt_heads = 6;
  int64_t gpt_context = 256;
  // In [0, 1), for those that have dropout; none: the model's own (VGG 0.5, GPT 0.1, ViT 0).
  absl::optional<double> dropout;
  bool activation_checkpointing = false;  // Model::set_activation_checkpointing()
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_MODEL_OPTIONS_H_
