#ifndef GRADSYNC_WORKER_MODELS_CHECK_SLICES_H_
#define GRADSYNC_WORKER_MODELS_CHECK_SLICES_H_

#include "absl/status/status.h"
#include "worker/models/model_options.h"

namespace gradsync {

// Whether the model that `options` describe, with as many classes as its data has, can be cut into
// `slices` (worker/models/sliceable_model.h), with `split_sequence` its sequence too. Errors:
// INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::Status CheckSlices(const ModelOptions& options, int slices, bool split_sequence);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_CHECK_SLICES_H_
