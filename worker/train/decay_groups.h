// Parameters that the optimizer leaves without weight decay, as recipes for large batches have it
// (Goyal et al., "Accurate, Large Minibatch SGD", 2017; He et al., "Bag of Tricks", CVPR 2019).

#ifndef GRADSYNC_WORKER_TRAIN_DECAY_GROUPS_H_
#define GRADSYNC_WORKER_TRAIN_DECAY_GROUPS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"
#include "torch/nn/module.h"

namespace gradsync {

// Gives `optimizer`, which has one group, a second one that is like it but without weight decay,
// and returns which of the two a parameter of `module` is in (DdpEngineOptions::group_of). In the second
// are all that one of `words` names:
//
//   norm     what layers own whose class has Norm in its name
//   bias     what is called bias, in any layer
//   vectors  what has fewer than 2 dimensions
//   others   names of parameters such as fc.weight; each * in them stands for any text
//
// Without words the optimizer stays as it is, and the result is null. Errors: INVALID_ARGUMENT
// naming --no_weight_decay and the first word that no trainable parameter fits.
absl::StatusOr<std::function<int(const TensorSpec&)>> ExcludeFromDecay(
    const std::vector<std::string>& words, const torch::nn::Module& module,
    OptimizerSpec* optimizer);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_DECAY_GROUPS_H_
