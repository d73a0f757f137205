// Which buckets have their parameters when, where owners alone keep them.

#ifndef GRADSYNC_GRADSYNC_DDP_PARAMETER_GATHERS_H_
#define GRADSYNC_GRADSYNC_DDP_PARAMETER_GATHERS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/group/sync_handle.h"
#include "core/plan/step_order.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

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
