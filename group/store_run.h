// Which run of which job a store is of. The worker of rank 0 holds the store and says so there;
// parameter servers ask. No launcher need tell them: the variables of torchrun reach only workers,
// and each step of a Slurm job, and each mpirun, has a number of its own.

#ifndef GRADSYNC_GROUP_STORE_RUN_H_
#define GRADSYNC_GROUP_STORE_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "group/key_value_store.h"

namespace gradsync {

// As group/worker_group.h has them.
struct StoreRun {
  std::string run_id;
  int attempt = 0;
};

// Errors, both: those of KeyValueStore.
absl::Status PublishRun(KeyValueStore& store, const StoreRun& run, Deadline deadline);

// Waits until the run has been published. Errors: also DATA_LOSS for something else in its place.
absl::StatusOr<StoreRun> AskForRun(KeyValueStore& store, Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_GROUP_STORE_RUN_H_
