// The flags of a job whose model is cut into stages, and what does not go together with them.

#ifndef GRADSYNC_WORKER_PIPELINE_FLAGS_H_
#define GRADSYNC_WORKER_PIPELINE_FLAGS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/job_spec.h"
#include "worker/job_options.h"

namespace gradsync {

// Sets what the flags say in `job`, whose other options are there already: the mesh, the schedule,
// where the model is cut, and micro-batches as accumulation. Errors: INVALID_ARGUMENT naming the
// flag, what was expected and what came.
absl::Status PipelineFromFlags(JobOptions* job);

// What links the parts of a model that are on several ranks, as --`flag` says it. Errors:
// INVALID_ARGUMENT.
absl::StatusOr<Link> ParsePartsLink(absl::string_view flag, absl::string_view text);

// Whether a job with stages or slices can do what else it is asked for. Errors: INVALID_ARGUMENT naming the
// flag that has to go.
absl::Status CheckPipeline(const JobOptions& job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_FLAGS_H_
