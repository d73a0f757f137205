#ifndef GRADSYNC_ALLREDUCE_SHM_GRADIENT_SYNC_H_
#define GRADSYNC_ALLREDUCE_SHM_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/plan/kinds.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct ShmRingOptions {
  WorkerGroup group;
  // kOwner: each rank keeps 1/n of the optimizer's state and updates its chunks for all.
  UpdateSite update_site = UpdateSite::kWorker;
};

// A GradientSync for ranks on one host (same boot, network namespace and user): the buckets are
// memory that all ranks map, and each rank folds the chunks that a ring would end on it, reading
// all gradients and storing the result for all in one pass (shm_engine.h). Same order, hence same
// bits, as the ring and the parameter servers.
//
// Bind() connects all ranks with all others over Unix sockets and fails when hosts or options
// differ. A rank whose process ends without Shutdown() is noticed at once, one that is stopped
// after group.timeout; both fail the group.
//
// Threads: one folds (shm_engine.h), one watches the other ranks
// (core/shared_memory/window_mesh.h). Launch() takes microseconds. Methods that are collective
// block until `deadline` when a peer is missing. wire_stats() counts what is stored into other
// ranks' memory as sent: WindowStepFlows() in core/plan/wire_traffic.h.
//
// Errors: INVALID_ARGUMENT for options out of range.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateShmRingGradientSync(
    const ShmRingOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_SHM_GRADIENT_SYNC_H_
