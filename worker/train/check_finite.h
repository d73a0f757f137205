#ifndef GRADSYNC_WORKER_TRAIN_CHECK_FINITE_H_
#define GRADSYNC_WORKER_TRAIN_CHECK_FINITE_H_

#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/models/model.h"

namespace gradsync {

// Whether training has left something to use. `where` says which step of which rank, for messages.
// Errors, all: INTERNAL with `where` and what was found; of a model also when LibTorch throws.
absl::Status CheckFinite(absl::string_view where, double loss);

// Parameters, and buffers too: a running variance may overflow while losses do not. Waits for the
// model's device.
absl::Status CheckFinite(absl::string_view where, const Model& model);

// One parameter.
absl::Status CheckFinite(absl::string_view where, const std::string& name,
                         const at::Tensor& parameter);

// Whether weights read from the file `path` are worth training on. Errors: INVALID_ARGUMENT naming the
// file and the first tensor that has an infinite value or a NaN.
absl::Status CheckFiniteWeights(const std::string& path, const Model& model);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_CHECK_FINITE_H_
