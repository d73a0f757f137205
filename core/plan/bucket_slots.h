// Where the flat buffers of a plan's buckets lie, when some of them take turns (BucketSlots).

#ifndef GRADSYNC_CORE_PLAN_BUCKET_SLOTS_H_
#define GRADSYNC_CORE_PLAN_BUCKET_SLOTS_H_

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace gradsync {

// The slot of a bucket, where there are `slots` (0: as many as buckets).
constexpr int SlotOf(int bucket, int slots) { return slots == 0 ? bucket : bucket % slots; }

// How many elements each slot has: as many as the largest bucket that uses it. No more slots than
// buckets.
std::vector<int64_t> SlotElements(const Plan& plan, int slots);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_BUCKET_SLOTS_H_
