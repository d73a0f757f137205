#ifndef GRADSYNC_ALLREDUCE_COLLECT_STATE_H_
#define GRADSYNC_ALLREDUCE_COLLECT_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// The optimizer's state of ranges of one bucket, one after the other, as bytes: for each range a
// byte that says whether there is state, then, if so, the floats of each slot in the order of
// SlotNames().
class StateBytes {
 public:
  // Begins the next range. With `has_state` all of its slots follow.
  void BeginRange(bool has_state);
  void AppendSlot(const float* values, int64_t count);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Who has what of the optimizer's state, as one rank knows it.
struct StateOwners {
  // This rank's state of a bucket.
  absl::FunctionRef<absl::StatusOr<StateBytes>(int bucket)> exported;
  // The ranges of `bucket` that `rank` owns, none of them empty, in the order of its StateBytes.
  absl::FunctionRef<std::vector<ElementRange>(int bucket, int rank)> ranges;
};

// Collective, under kOwner and while nothing is launched: the optimizer's state after `steps`
// steps, whole on every rank, from what each rank has of it. Blocks until all have come or
// `deadline`.
// Errors: those of the side channel and of `exported`; DATA_LOSS when a rank's part has another
// length than the plan's.
absl::StatusOr<OptimizerState> CollectState(const Plan& plan, const StateOwners& owners,
                                            int64_t steps, SideChannel& side_channel,
                                            Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_COLLECT_STATE_H_
