// From the text of the --model and --stem flags to a model.
#ifndef GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_
#define GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"

namespace gradsync {

// A new model on the CPU, in training mode. The caller owns it. No global state is read or changed.
// A ResNet-50 takes about a second, a VGG-16 some seconds.
//
// Errors: INVALID_ARGUMENT for an unknown name or stem (with those that exist), classes, a hidden
// width or a size of the GPT below 1, a width that is no multiple of the heads, a dropout outside
// [0, 1), or an image size that a vision transformer's patches do not divide.
absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_
