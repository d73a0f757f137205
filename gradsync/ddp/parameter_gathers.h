// Which buckets have their parameters when, where owners alone keep them.

#ifndef GRADSYNC_GRADSYNC_DDP_PARAMETER_GATHERS_H_
#define GRADSYNC_GRADSYNC_DDP_PARAMETER_GATHERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/group/sync_handle.h"
#include "core/plan/plan.h"
#include "core/plan/step_order.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/flat_parameters.h"

namespace gradsync {

// Gives `plan` slots of parameters, as few as the units (DdpEngineOptions::units) need. Errors: those of
// UnitBuckets() and Plan::WithSlots().
absl::Status MakeParameterSlots(const std::vector<std::vector<std::string>>& units, Plan* plan);

// Collective over `ranks`; null: there is one. Ranks that gather in other orders would wait for each
// other. Errors: FAILED_PRECONDITION naming the first difference; those of SideChannel.
absl::Status AgreeOnUnits(const std::vector<std::vector<std::string>>& units, SideChannel* ranks,
                          Deadline deadline);

// Gathers what a unit needs before it computes, and what the next one needs meanwhile, in the order
// of core/plan/step_order.h, and so the same on all ranks that make the same calls.
//
// Not thread-safe. Errors: those of GradientSync::Gather().
class ParameterGathers {
 public:
  // `units` are buckets, as UnitBuckets() has them. `sync` must outlive this object.
  ParameterGathers(GradientSync* sync, int buckets, int slots, std::vector<std::vector<int>> units);

  // Waits until the buckets of the turn's unit are here; then those of its next one are on their
  // way. Of the unit that was needed before nothing is used any more, unless it is one of these.
  absl::Status Need(UnitTurn turn, Deadline deadline);

  // The same of one bucket.
  absl::Status NeedBucket(int bucket, Deadline deadline);

  // Calls `visit` for each parameter, all of them in order, which has its values then. `parameters`
  // are those of the buckets. Errors: also those of `visit`.
  absl::Status Visit(const FlatParameters& parameters,
                     const std::function<absl::Status(const std::string& name,
                                                      const at::Tensor& parameter)>& visit,
                     Deadline deadline);

  // FlatParameters::Sha256(), each parameter as Visit() has it.
  absl::StatusOr<std::string> Sha256(const FlatParameters& parameters, Deadline deadline);

  // The bucket's parameters change at their owners: when they are needed again they are to be
  // gathered again. Its memory keeps the old ones until then.
  void Forget(int bucket) { order_.Forget(bucket); }

  // Gathers so far.
  int64_t gathers() const { return gathers_; }

 private:
  void Begin(int bucket);

  GradientSync* const sync_;
  const std::vector<std::vector<int>> units_;
  GatherOrder order_;
  std::vector<absl::optional<SyncHandle>> handles_;  // by bucket: of its last gather
  int64_t gathers_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_PARAMETER_GATHERS_H_
