// Where a model is cut into stages, and which parameters that gives to each.

#ifndef GRADSYNC_WORKER_TRAIN_MODEL_SPLIT_H_
#define GRADSYNC_WORKER_TRAIN_MODEL_SPLIT_H_

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "core/pipeline/split.h"
#include "worker/models/model.h"
#include "worker/train/compute_options.h"

namespace gradsync {

// `text` as --split has it: the blocks before which stages begin, or `auto`, which computes forward
// and backward of each block of `model` with what `example` makes, a batch of the job's size whose
// values are of no matter, and makes the slowest stage as fast as can be. `model` is whole, and has
// no gradients afterwards. Errors: INVALID_ARGUMENT naming --split for blocks that the model does
// not have; INTERNAL when LibTorch throws.
absl::StatusOr<StageSplit> SplitModel(const std::string& text, int stages,
                                      const ComputeOptions& compute, Model& model,
                                      const std::function<at::Tensor()>& example);

// The stage of each trainable parameter, in the model's order. Errors: FAILED_PRECONDITION for a
// parameter that two stages would share; INVALID_ARGUMENT naming --split for a stage without any.
absl::StatusOr<std::vector<int>> StagesOfParameters(Model& model, const StageSplit& split);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_MODEL_SPLIT_H_
