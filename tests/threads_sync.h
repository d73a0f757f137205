// A GradientSync between threads of one process, for tests of what sits above a backend.

#ifndef GRADSYNC_TESTS_THREADS_SYNC_H_
#define GRADSYNC_TESTS_THREADS_SYNC_H_

#include <memory>
#include <vector>

#include "core/sync/gradient_sync.h"

namespace gradsync {

// One for each of `world_size` ranks; kWorker only. The mean is folded in rank order by the last
// rank to launch the bucket, so it has the plan's bits for two workers at most. Waits forever for
// ranks that do not come.
std::vector<std::unique_ptr<GradientSync>> CreateThreadsSync(int world_size);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_THREADS_SYNC_H_
