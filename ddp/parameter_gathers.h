// Which buckets have their parameters when, where owners alone keep them.

#ifndef GRADSYNC_DDP_PARAMETER_GATHERS_H_
#define GRADSYNC_DDP_PARAMETER_GATHERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "group/sync_handle.h"
#include "plan/plan.h"
#include "sync/gradient_sync.h"

namespace gradsync {

// The buckets of each unit, ascending; a unit is what is computed with in one go, a block of a
// model, given by its trainable parameters. Errors: INVALID_ARGUMENT when a parameter of the plan is
// in no unit or in two, or a unit's is not in the plan.
absl::StatusOr<std::vector<std::vector<int>>> UnitBuckets(
    const Plan& plan, const std::vector<std::vector<std::string>>& units);

// The fewest slots of parameters with which the buckets of a unit, and those of the one before or
// after it, all have memory of their own (SlotOf()).
int ParameterSlotsFor(const std::vector<std::vector<int>>& units);

// Gathers what a unit needs before it computes, and what the next one needs meanwhile. A bucket
// stays until its slot is needed for another one, so what is there already is not gathered again.
// What is gathered when is a function of the calls alone, and so the same on all ranks that make
// the same calls.
//
// Not thread-safe. Errors: those of GradientSync::Gather().
class ParameterGathers {
 public:
  // `units` are buckets, as UnitBuckets() has them. `sync` must outlive this object.
  ParameterGathers(GradientSync* sync, int buckets, int slots, std::vector<std::vector<int>> units);

  // Waits until the unit's buckets are here; then those of unit `next` are on their way (-1: none).
  // Of the unit that was needed before nothing is used any more, unless it is `unit` or `next`.
  absl::Status Need(int unit, int next, Deadline deadline);

  // The same of one bucket.
  absl::Status NeedBucket(int bucket, Deadline deadline);

  // The bucket's parameters change at their owners: when they are needed again they are to be
  // gathered again. Its memory keeps the old ones until then.
  void Forget(int bucket) { here_[bucket].reset(); }

  // Gathers so far.
  int64_t gathers() const { return gathers_; }

 private:
  void Begin(int bucket);

  GradientSync* const sync_;
  const int slots_;
  const std::vector<std::vector<int>> units_;
  std::vector<absl::optional<SyncHandle>> here_;  // by bucket: here or on its way
  int64_t gathers_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_DDP_PARAMETER_GATHERS_H_
