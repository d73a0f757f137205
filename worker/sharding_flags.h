// The flag that says what is kept by owners alone, and what does not go together with it.

#ifndef GRADSYNC_WORKER_SHARDING_FLAGS_H_
#define GRADSYNC_WORKER_SHARDING_FLAGS_H_

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

// Sets what the flag says in `job`, whose other options are there already: who updates, and which
// buckets share memory. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came,
// also where it does not go together with what else the job is asked for.
absl::Status ShardingFromFlags(JobOptions* job);

// The same for a job that has `zero` for another reason, with the same errors.
absl::Status ShardJob(int zero, JobOptions* job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SHARDING_FLAGS_H_
