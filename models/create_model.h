// From the text of the --model and --stem flags to a model.
#ifndef GRADSYNC_MODELS_CREATE_MODEL_H_
#define GRADSYNC_MODELS_CREATE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace gradsync {

struct ModelOptions {
  std::string name = "resnet18";  // resnet18, resnet50 or mlp
  std::string stem =
      "imagenet";  // imagenet or cifar (models/resnet.h); mlp takes either and ignores it
  int64_t classes = 10;
  uint64_t seed = 0;                   // Equal seeds give equal initial weights.
  std::vector<int64_t> hidden = {32};  // mlp only.
};

// A new model on the CPU, in training mode, for images of 3x32x32 (the ResNets also take larger
// ones). The caller owns it. No global state is read or changed. A ResNet-50 takes about a second.
//
// Errors: INVALID_ARGUMENT for an unknown name or stem (with those that exist), or classes or a
// hidden width below 1.
absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_MODELS_CREATE_MODEL_H_
