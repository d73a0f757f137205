// The flags of what a job leaves behind and starts from (docs/checkpoints.md).

#ifndef GRADSYNC_WORKER_CHECKPOINT_FLAGS_H_
#define GRADSYNC_WORKER_CHECKPOINT_FLAGS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/train/checkpoint_options.h"

namespace gradsync {

// What the flags say. `flags`: all of the job's flags, of which CheckpointOptions::job takes those
// that decide what is trained, or its bits. Errors: INVALID_ARGUMENT naming the flag, what was
// expected and what came.
absl::StatusOr<CheckpointOptions> CheckpointOptionsFromFlags(
    const std::map<std::string, std::string>& flags);

// For jobs that neither write checkpoints nor resume: OK for options that ask for neither, else
// INVALID_ARGUMENT naming the flag. `where`: "with stages (--mesh)".
absl::Status RefuseCheckpoints(const CheckpointOptions& options, absl::string_view where);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_FLAGS_H_
