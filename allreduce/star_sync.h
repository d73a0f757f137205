#ifndef GRADSYNC_ALLREDUCE_STAR_SYNC_H_
#define GRADSYNC_ALLREDUCE_STAR_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// The smallest GradientSync there can be, for tests: shows what a backend needs besides the life
// that all share (core/sync/group_sync.h), and is where to begin one. A star on rank 0, by a side
// channel: every rank sends its gradient there, has all of them back, and folds them in the plan's
// order. Update at the worker; no compression. It counts no bytes.
//
// Errors: INVALID_ARGUMENT as NewGroupSync().
absl::StatusOr<std::unique_ptr<GradientSync>> CreateStarSync(const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_STAR_SYNC_H_
