#ifndef GRADSYNC_WORKER_MODELS_DESCRIBE_MODEL_H_
#define GRADSYNC_WORKER_MODELS_DESCRIBE_MODEL_H_

#include <string>

#include "ATen/core/Tensor.h"
#include "worker/models/model.h"

namespace gradsync {

// A table of the model's blocks, a line each: index, name, parameters and the shape of what it
// passes on for `example`, a batch of one; then the totals. Runs the model once, in evaluation and
// without a graph, and leaves it as it was. Throws what the model throws.
std::string DescribeModel(const std::string& name, Model& model, const at::Tensor& example);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_DESCRIBE_MODEL_H_
