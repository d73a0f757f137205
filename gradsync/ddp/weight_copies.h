// Copies of weights in a narrower type, which lie beside them and follow them.

#ifndef GRADSYNC_GRADSYNC_DDP_WEIGHT_COPIES_H_
#define GRADSYNC_GRADSYNC_DDP_WEIGHT_COPIES_H_

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/ScalarType.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/flat_parameters.h"

namespace gradsync {

// Under autocast each forward rounds each weight, and each backward widens each gradient, by an
// operation of its own: on a GPU some hundred kernels of a ResNet-50's step that do nothing else.
// Here the weights of a bucket are rounded by one, when they have changed, and gradients are widened
// by what copies them into their bucket. Every bit is what it was: a value is rounded the same way
// wherever it lies.
//
// A copy is a leaf of autograd with the parameter's sizes and strides, whose gradient counts as the
// parameter's (FlatParameter::leaf). Copies of a bucket are views of one tensor.
//
// Not thread-safe. Nothing blocks or throws; on a GPU work is queued on the current stream.
class WeightCopies {
 public:
  WeightCopies() = default;

  // Of the parameters of these names, in `type`. Those of them that are not among `parameters` are
  // passed over: another rank has them. Errors: INTERNAL with what LibTorch throws, such as
  // for want of memory; `parameters` is then as it was.
  static absl::StatusOr<WeightCopies> Create(c10::ScalarType type,
                                             const std::vector<std::string>& names,
                                             const std::vector<GradBucket>& buckets,
                                             FlatParameters* parameters);

  // Rounds what the parameters are now. Errors: INTERNAL with what LibTorch throws.
  absl::Status Refresh() const;

 private:
  struct Bucket {
    at::Tensor weights;  // all of GradBucket::param
    at::Tensor copies;
  };

  std::vector<Bucket> buckets_;  // those with copies
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_WEIGHT_COPIES_H_
