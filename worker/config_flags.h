// The flags that name a job file and show what the job was told.

#ifndef GRADSYNC_WORKER_CONFIG_FLAGS_H_
#define GRADSYNC_WORKER_CONFIG_FLAGS_H_

#include <vector>

#include "absl/status/status.h"
#include "core/program/flags.h"
#include "gradsync/join/join.h"
#include "worker/effective_flags.h"

namespace gradsync {

// How //worker reads its command line: --config=FILE.yaml sets flags that the command line does
// not.
FlagOptions WorkerFlagOptions();

// Refuses more than one of --describe_model, --check_data and --evaluate_only, each of which is all
// that a worker then does. Errors: INVALID_ARGUMENT naming two of them.
absl::Status CheckOneTask(const std::vector<FlagRecord>& flags);

// Refuses a flag that somebody set and that has no effect beside the others (effective_flags.h). What
// the command line overrules of a job file is printed as a notice on rank 0. `flags` as they were
// parsed. Errors: INVALID_ARGUMENT naming the flag, on what its effect depends and what came.
absl::Status CheckFlagsTogether(const std::vector<FlagRecord>& flags, int rank);

// `flags` as they were parsed, with what the launcher said in place of defaults; `join` has that.
EffectiveFlags EffectiveFlagsFrom(std::vector<FlagRecord> flags, const JoinOptions& join);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CONFIG_FLAGS_H_
