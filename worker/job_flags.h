// The flags of a job that are read without LibTorch: its model, its failures, its checkpoints.

#ifndef GRADSYNC_WORKER_JOB_FLAGS_H_
#define GRADSYNC_WORKER_JOB_FLAGS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/models/model_options.h"
#include "worker/train/checkpoint_options.h"

namespace gradsync {

// Flags of the model that --model names: sizes, dropout, activation checkpointing, and a look at
// it.

// Sets what these flags say; CreateModel() checks it.
void SetModelFlags(ModelOptions* options);

// Whether the user wants to see the model (DescribeJob()) instead of a job.
bool WantsDescription();

// By which a job notices that one of its processes is lost or stuck: MeetOptions::failure_timeout.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and
// what came.
absl::StatusOr<absl::Duration> FailureTimeoutFromFlags();

// What the flags of what a job leaves behind and starts from say (docs/use/checkpoints.md). `flags`:
// all of the job's flags, of which CheckpointOptions::job takes those that decide what is trained,
// or its bits. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<CheckpointOptions> CheckpointOptionsFromFlags(
    const std::map<std::string, std::string>& flags);

// For jobs that neither write checkpoints nor resume: OK for options that ask for neither, else
// INVALID_ARGUMENT naming the flag. `where`: "with stages (--mesh)".
absl::Status RefuseCheckpoints(const CheckpointOptions& options, absl::string_view where);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_FLAGS_H_
