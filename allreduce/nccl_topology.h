#ifndef GRADSYNC_ALLREDUCE_NCCL_TOPOLOGY_H_
#define GRADSYNC_ALLREDUCE_NCCL_TOPOLOGY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "allreduce/nccl_buckets.h"
#include "allreduce/nccl_communicator.h"
#include "core/base/deadline.h"
#include "core/gpu/gpu_api.h"
#include "core/group/wire_stats.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"

namespace gradsync {

// What the exchange of a group works with: its rank's memory, the stream on which everything is
// queued, and NCCL.
struct NcclLane {
  std::shared_ptr<GpuApi> gpu;
  std::shared_ptr<const NcclBuckets> buckets;
  GpuStream stream = nullptr;
  NcclCommunicator* communicator = nullptr;
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout;  // of a call into NCCL

  Deadline Soon() const { return Deadline::In(timeout); }
};

// Who adds what up and how it travels: what a ring and parameter servers over NCCL differ in.
// nccl_exchange.h puts a step together from it.
//
// Methods queue work on the lane's stream and return when it is queued, with the errors of GpuApi
// and NcclCommunicator. Not thread-safe, except wire_stats(). The object, whose memory the work
// uses, must outlive the work. `what` names the bucket in errors.
class NcclTopology {
 public:
  virtual ~NcclTopology() = default;

  // Who owns what. Where nobody does, all ranks have every mean by Reduce() alone: empty.
  virtual const NcclShares& shares() const = 0;

  // The gradients of the shares, at their owners, become the mean over ranks, times
  // `inverse_loss_scale`.
  virtual absl::Status Reduce(absl::string_view what, int bucket, float inverse_loss_scale) = 0;

  // The owners' shares, of means under kWorker and of parameters under kOwner, go to all ranks.
  virtual absl::Status Spread(absl::string_view what, int bucket) = 0;

  // Rank 0's parameters, of all buckets, go to all ranks.
  virtual absl::Status BroadcastParameters() = 0;

  // What this rank has queued. All 0 where NCCL alone knows.
  virtual WireStats wire_stats() const = 0;
};

// NCCL's own collectives: an all-reduce under kWorker, reduce-scatter and all-gather under kOwner.
// NCCL adds in an order of its own.
std::unique_ptr<NcclTopology> NewNcclRing(const NcclLane& lane, UpdateSite site);

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

#endif  // GRADSYNC_ALLREDUCE_NCCL_TOPOLOGY_H_
