// The flag that says what of a job on a GPU is kept and done on the host, and what does not go
// together with it.

#ifndef GRADSYNC_WORKER_OFFLOAD_FLAGS_H_
#define GRADSYNC_WORKER_OFFLOAD_FLAGS_H_

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

// Sets what the flag says in `job`, whose other options are there already: with the optimizer on
// the host owners update, over a link of the host (core/sync/staged_sync.h); with the parameters
// the job is sharded too, as by --zero=3. Errors: INVALID_ARGUMENT naming the flag, what was
// expected and what came, also where it does not go together with what else the job is asked for.
absl::Status OffloadFromFlags(JobOptions* job);

// Whether there is a GPU to keep it away from, once it is known which device the job has. Errors:
// INVALID_ARGUMENT naming the flag.
absl::Status CheckOffload(const JobOptions& job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_OFFLOAD_FLAGS_H_
