// The flags that say which backend runs, the same in every program that runs one. Only for main
// files, since flags are global.

#ifndef GRADSYNC_WORKER_SYNC_FLAGS_H_
#define GRADSYNC_WORKER_SYNC_FLAGS_H_

#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"
#include "gradsync/join/sync_factory.h"

ABSL_DECLARE_FLAG(std::string, topology);
ABSL_DECLARE_FLAG(std::string, link);
ABSL_DECLARE_FLAG(std::string, update);
ABSL_DECLARE_FLAG(std::string, consistency);
ABSL_DECLARE_FLAG(std::string, compression);
ABSL_DECLARE_FLAG(std::vector<std::string>, servers);
ABSL_DECLARE_FLAG(std::string, server_weights);
ABSL_DECLARE_FLAG(int, owners);
ABSL_DECLARE_FLAG(int, connections);

namespace gradsync {

// What they say, each by itself; ValidateSyncOptions() says whether it goes together.
// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<SyncOptions> SyncFromFlags();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SYNC_FLAGS_H_
