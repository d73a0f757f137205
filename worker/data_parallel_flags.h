// The flag of a process with several replicas of the model, and what does not go together with it.

#ifndef GRADSYNC_WORKER_DATA_PARALLEL_FLAGS_H_
#define GRADSYNC_WORKER_DATA_PARALLEL_FLAGS_H_

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

// Sets what the flag says in `job`, whose other options are there already. Errors: INVALID_ARGUMENT
// naming the flag, what was expected and what came, also where it does not go together with what
// else the job is asked for.
absl::Status DataParallelFromFlags(JobOptions* job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_PARALLEL_FLAGS_H_
