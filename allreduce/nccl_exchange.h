#ifndef GRADSYNC_ALLREDUCE_NCCL_EXCHANGE_H_
#define GRADSYNC_ALLREDUCE_NCCL_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/nccl_owner.h"
#include "allreduce/nccl_topology.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/group/wire_stats.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"

namespace gradsync {

// What is queued for each bucket of a step, whatever the topology: means for the callers, or, with
// owners that update, their optimizer, the comparison of options and clipping.
//
// Methods queue work on the lane's stream and return when it is queued; nobody waits. Not
// thread-safe, except wire_stats(). The object, whose memory the work uses, must outlive the work.
// Errors: those of GpuApi and NcclCommunicator.
class NcclExchange {
 public:
  using Complete = absl::FunctionRef<absl::Status(int bucket)>;

  // `refuse` as in NcclOwner::CompareSteps().
  static absl::StatusOr<std::unique_ptr<NcclExchange>> Create(
      const NcclLane& lane, std::unique_ptr<NcclTopology> topology, const Plan& plan,
      UpdateSite site, std::function<void(absl::Status)> refuse);

  // The exchange of a bucket, called for each in index order, when the lane's stream has been told
  // to wait for its gradient. Calls `complete` as soon as all work for a bucket's result is queued:
  // usually for this bucket, and under clipping by owners for none before the last, and then for
  // all. Its errors are returned.
  absl::Status Run(const StepOptions& step, int bucket, Complete complete);

  absl::Status BroadcastParameters() { return topology_->BroadcastParameters(); }
  WireStats wire_stats() const { return topology_->wire_stats(); }

  // As DeviceOwner has them; only with owners that update.
  absl::StatusOr<OptimizerState> Export(int64_t steps, SideChannel& side_channel,
                                        Deadline deadline);
  absl::Status Import(const OptimizerState& state);

 private:
  NcclExchange(const NcclLane& lane, std::unique_ptr<NcclTopology> topology, int num_buckets,
               std::function<void(absl::Status)> refuse);

  absl::Status UpdateAndSpread(const StepOptions& step, int bucket, Complete complete);

  const NcclLane lane_;
  const std::unique_ptr<NcclTopology> topology_;
  const int num_buckets_;
  const std::function<void(absl::Status)> refuse_;
  std::unique_ptr<NcclOwner> owner_;  // under kOwner
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_EXCHANGE_H_
