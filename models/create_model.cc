#include "models/create_model.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/mlp.h"
#include "models/resnet.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& options) {
  if (options.classes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: expected at least 1 class, found ", options.classes));
  }
  if (options.stem != "imagenet" && options.stem != "cifar") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown stem '", options.stem, "': expected imagenet or cifar"));
  }
  if (options.name == "resnet18" || options.name == "resnet50") {
    ResNetOptions resnet;
    resnet.depth = options.name == "resnet18" ? ResNetDepth::k18 : ResNetDepth::k50;
    resnet.stem = options.stem == "cifar" ? ResNetStem::kCifar : ResNetStem::kImageNet;
    resnet.classes = options.classes;
    resnet.seed = options.seed;
    return MakeResNet(resnet);
  }
  if (options.name == "mlp") {
    MlpOptions mlp;
    for (int64_t width : options.hidden) {
      if (width < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("model: expected hidden layers of at least 1 unit, found ", width));
      }
    }
    mlp.hidden = options.hidden;
    mlp.classes = options.classes;
    mlp.seed = options.seed;
    return MakeMlp(mlp);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown model '", options.name, "': expected resnet18, resnet50 or mlp"));
}

}  // namespace gradsync
