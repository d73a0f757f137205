#include "allreduce/collect_state.h"

#include <string>
#include <vector>

#include "base/status_macros.h"

namespace gradsync {

absl::StatusOr<OptimizerState> CollectState(const Plan& plan, const RingOwner& owner, int64_t steps,
                                            SideChannel& side_channel, Deadline deadline) {
  OptimizerState state;
  state.step = steps;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                        side_channel.AllGather(owner.ExportBucket(bucket), deadline));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      GS_RETURN_IF_ERROR(owner.Collect(bucket, static_cast<int>(rank), parts[rank], &state));
    }
  }
  return state;
}

}  // namespace gradsync
