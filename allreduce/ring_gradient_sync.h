#ifndef GRADSYNC_ALLREDUCE_RING_GRADIENT_SYNC_H_
#define GRADSYNC_ALLREDUCE_RING_GRADIENT_SYNC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/ring_schedule.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct RingOptions {
  WorkerGroup group;
  // How frames move, the same kind on all ranks, and what identity() calls it.
  std::shared_ptr<StreamLink> link;
  Backend backend = Backend::kRingOverGrpc;
  // kOwner: reduce-scatter, update of the own chunks, all-gather of parameters (ZeRO-1 for the
  // bytes of an allreduce).
  UpdateSite update_site = UpdateSite::kWorker;
  // Parallel connections to each neighbour, at least 1.
  int connections = 4;
  // Own tokens under way at a time, at least 1 (simulated: 1 costs +55 to +150 % time, 8 at most +5
  // %).
  int lead = kRingLead;
};

// A GradientSync over a ring: a bandwidth-optimal allreduce, pipelined in stripes, of which every
// rank sends and receives 2(n-1)/n of the gradient's bytes per step (exactly: StepTraffic() in
// core/plan/ring_schedule.h, which wire_stats() counts). Folds in the plan's order. The algorithm
// is told in core/plan/ring_schedule.h, the rules that keep it free of deadlock in ring_tokens.h.
//
// All ranks need the same update site, connections and lead; Bind() checks. Under kOwner
// `max_norm` clips at the owners; under kWorker clipping is the caller's.
//
// Threads: sums are added on the link's threads; one thread of this object begins launches.
// Launch() takes locks for microseconds and never adds. Methods that are collective block until
// `deadline` when a peer is missing.
//
// Errors: INVALID_ARGUMENT for options out of range.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateRingGradientSync(const RingOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_GRADIENT_SYNC_H_
