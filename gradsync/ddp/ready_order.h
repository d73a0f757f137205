// The order in which backward completes gradients, observed once.

#ifndef GRADSYNC_GRADSYNC_DDP_READY_ORDER_H_
#define GRADSYNC_GRADSYNC_DDP_READY_ORDER_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace torch {
namespace nn {
class Module;
}  // namespace nn
}  // namespace torch

namespace gradsync {

// Calls `forward_backward` once, which runs one forward and one backward of `module` on any batch
// of the usual shape, and returns the order in which the gradients were complete: indices into
// TensorSpecsOf(module). Buckets filled in this order are ready one after the other, the first ones
// early in backward.
//
// Afterwards the module is as before: buffers (BatchNorm's running statistics), gradients, and the
// state of the default CPU random generator are restored, also on errors. Other side effects of
// `forward_backward` (other generators, a data loader's position) are the caller's business; it
// must not run an optimizer. Runs on the calling thread. Does not throw.
//
// `allow_unused`: parameters that got no gradient come last, the reverse of their registration.
//
// Errors: INVALID_ARGUMENT naming the parameters that got no gradient, unless they may, or that got
// one twice (two backwards, or reentrant ones); those of TensorSpecsOf(); INTERNAL with the text of an
// exception that `forward_backward` threw.
absl::StatusOr<std::vector<int>> ObserveReadyOrder(const torch::nn::Module& module,
                                                   const std::function<void()>& forward_backward,
                                                   bool allow_unused = false);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_READY_ORDER_H_
