#ifndef GRADSYNC_ALLREDUCE_NCCL_SERVERS_H_
#define GRADSYNC_ALLREDUCE_NCCL_SERVERS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "allreduce/nccl_topology.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"

namespace gradsync {

// Parameter servers on GPUs: the first `owners` ranks own the plan's chunks, as servers of equal
// weights do. In Reduce() every rank sends each owner its gradients of that owner's chunks, and the
// owner folds them in the plan's order (core/plan/stripes.h), so that means have the bits of
// parameter servers of the host for any number of ranks. In Spread() owners send to all. Each is
// one group of NCCL's sends and receives.
//
// With n ranks and a bucket of B bytes a rank sends B less what it owns itself, and an owner (n-1)
// times what it owns in Spread(); it receives the same. wire_stats() counts these. Owners have
// memory for n-1 contributions of the largest bucket.
//
// `owners` is from 1 to n, and n at most kMostFoldOperands. Blocks for a moment. Errors: those of
// GpuApi.
absl::StatusOr<std::unique_ptr<NcclTopology>> CreateNcclServers(const NcclLane& lane,
                                                                const Plan& plan, int owners,
                                                                UpdateSite site);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_SERVERS_H_
