// From the text of the --model and --stem flags to a model, and a table of what it is made of.

#ifndef GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_
#define GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_

#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"

namespace gradsync {

// OK where `times` times the memory of the parameters of such a model is available now. They are
// counted without making any, and too few rather than too many: the classifier, and all of an MLP
// and of a GPT's layers. `what` is it that takes so much: "weights and gradients". Errors:
// RESOURCE_EXHAUSTED naming the flags, what it takes and what there is.
absl::Status CheckModelMemory(const ModelOptions& options, absl::string_view what, int times);

// A new model on the CPU, in training mode. The caller owns it. No global state is changed.
// A ResNet-50 takes about a second, a VGG-16 some seconds.
//
// Errors: INVALID_ARGUMENT for an unknown name or stem (with those that exist), classes, a hidden
// width or a size of the GPT below 1, a width that is no multiple of the heads, a dropout outside
// [0, 1), or an image size that a vision transformer's patches do not divide; RESOURCE_EXHAUSTED
// where the memory for the weights is not there, as CheckModelMemory() has it or as LibTorch says.
absl::StatusOr<std::shared_ptr<Model>> CreateModel(const ModelOptions& options);

// A table of the model's blocks, a line each: index, name, parameters and the shape of what it
// passes on for `example`, a batch of one; then the totals. Runs the model once, in evaluation and
// without a graph, and leaves it as it was. Throws what the model throws.
std::string DescribeModel(const std::string& name, Model& model, const at::Tensor& example);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_CREATE_MODEL_H_
