#ifndef GRADSYNC_CORE_SYNC_WINDOW_BUCKETS_H_
#define GRADSYNC_CORE_SYNC_WINDOW_BUCKETS_H_

#include <memory>
#include <vector>

#include "core/shared_memory/window.h"
#include "core/shared_memory/window_group.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// The buckets of `rank` in its window, which they keep alive.
std::vector<GradBucket> WindowBuckets(const WindowGroup& group, int rank,
                                      const std::shared_ptr<Window>& window);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_WINDOW_BUCKETS_H_
