// --zero: how much owners keep for all (docs/sharding.md).

#ifndef GRADSYNC_CORE_PLAN_ZERO_H_
#define GRADSYNC_CORE_PLAN_ZERO_H_

#include "absl/status/status.h"
#include "core/plan/job_spec.h"
#include "core/plan/plan.h"
#include "core/plan/update_site.h"

namespace gradsync {

// 1: the optimizer's state; 2: gradients too; 3: parameters too.
constexpr int kMostZero = 3;

// Slots of gradients from --zero=2 on: one bucket fills while the one before is exchanged.
constexpr int kZeroGradientSlots = 2;

// What a job has that runs by such slots, and updates there: 1 where owners merely update.
inline int ZeroOf(const BucketSlots& slots, UpdateSite update) {
  if (slots.parameters > 0) return 3;
  if (slots.gradients > 0) return 2;
  return update == UpdateSite::kOwner ? 1 : 0;
}

// Whether such a job can have it, whoever trains. Errors: INVALID_ARGUMENT naming --zero, what was
// expected and what came.
absl::Status CheckZero(int zero, const JobSpec& spec);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_ZERO_H_
