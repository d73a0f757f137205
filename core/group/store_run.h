// Which run of which job a store is of. The worker of rank 0 holds the store and says so there;
// parameter servers ask. No launcher need tell them: the variables of torchrun reach only workers,
// and each step of a Slurm job, and each mpirun, has a number of its own.

#ifndef GRADSYNC_CORE_GROUP_STORE_RUN_H_
#define GRADSYNC_CORE_GROUP_STORE_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"

namespace gradsync {

// As core/group/worker_group.h has them.
struct StoreRun {
  std::string run_id;
  int attempt = 0;
  int workers = 1;
  int servers = -1;  // that register; -1: any number
};

// Errors, both: those of KeyValueStore.
absl::Status PublishRun(KeyValueStore& store, const StoreRun& run, Deadline deadline);

// Waits until the run has been published. Errors: also DATA_LOSS for something else in its place.
absl::StatusOr<StoreRun> AskForRun(KeyValueStore& store, Deadline deadline);

// What the store sets when it lets a worker in, and where a server registers its address.
std::string CameKey(const StoreRun& run, int rank);
std::string RegisteredKey(const StoreRun& run, int server);

// Who of the run is not in its store: "rank 2 of 3 has not come to rank 0's store", "server 1 of 2 has
// not registered in rank 0's store"; "" where nobody is missing or the store does not answer. Names
// a few; waits for a second at most.
std::string DescribeMissing(KeyValueStore& store);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_STORE_RUN_H_
