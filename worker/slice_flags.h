// The flags of a job whose layers are cut into slices, and what does not go together with them.

#ifndef GRADSYNC_WORKER_SLICE_FLAGS_H_
#define GRADSYNC_WORKER_SLICE_FLAGS_H_

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

// Sets what the flags say in `job`, whose mesh is there already. Errors: INVALID_ARGUMENT naming
// the flag, what was expected and what came: for a mesh that cuts a model in more than one way, and
// for flags that mean nothing without slices.
absl::Status SlicesFromFlags(JobOptions* job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SLICE_FLAGS_H_
