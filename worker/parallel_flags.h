// The flags that spread a job over devices: replicas in a process, slices, shards of what owners
// keep, and what they keep on the host.

#ifndef GRADSYNC_WORKER_PARALLEL_FLAGS_H_
#define GRADSYNC_WORKER_PARALLEL_FLAGS_H_

#include "absl/status/status.h"
#include "worker/job_options.h"

namespace gradsync {

// The flag of a process with several replicas of the model, and what does not go together with it.

// Sets what the flag says in `job`, whose other options are there already. Errors: INVALID_ARGUMENT
// naming the flag, what was expected and what came, also where it does not go together with what
// else the job is asked for.
absl::Status DataParallelFromFlags(JobOptions* job);

// The flags of a job whose layers are cut into slices, and what does not go together with them.

// Sets what the flags say in `job`, whose mesh is there already. Errors: INVALID_ARGUMENT naming
// the flag, what was expected and what came: for a mesh that cuts a model in more than one way, and
// for flags that mean nothing without slices.
absl::Status SlicesFromFlags(JobOptions* job);

// The flag that says what is kept by owners alone, and what does not go together with it.

// Sets what the flag says in `job`, whose other options are there already: who updates, and which
// buckets share memory. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came,
// also where it does not go together with what else the job is asked for.
absl::Status ShardingFromFlags(JobOptions* job);

// The same for a job that has `zero` for another reason, with the same errors.
absl::Status ShardJob(int zero, JobOptions* job);

// The flag that says what of a job on a GPU is kept and done on the host, and what does not go
// together with it.

// Sets what the flag says in `job`, whose other options are there already: with the optimizer on
// the host owners update, over a link of the host (core/sync/staged_sync.h); with the parameters
// the job is sharded too, as by --zero=3. Errors: INVALID_ARGUMENT naming the flag, what was
// expected and what came, also where it does not go together with what else the job is asked for.
absl::Status OffloadFromFlags(JobOptions* job);

// Whether there is a GPU to keep it away from, once it is known which device the job has. Errors:
// INVALID_ARGUMENT naming the flag.
absl::Status CheckOffload(const JobOptions& job);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PARALLEL_FLAGS_H_
