// The flags that name a job file and show what the job was told.

#ifndef GRADSYNC_WORKER_CONFIG_FLAGS_H_
#define GRADSYNC_WORKER_CONFIG_FLAGS_H_

#include <vector>

#include "base/flags.h"
#include "join/join.h"
#include "worker/effective_flags.h"

namespace gradsync {

// How //worker reads its command line: --config=FILE.yaml sets flags that the command line does
// not.
FlagOptions WorkerFlagOptions();

// `flags` as they were parsed, with what the launcher said in place of defaults; `join` has that.
EffectiveFlags EffectiveFlagsFrom(std::vector<FlagRecord> flags, const JoinOptions& join);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CONFIG_FLAGS_H_
