#include "core/plan/bucket_slots.h"

#include <algorithm>

namespace gradsync {

std::vector<int64_t> SlotElements(const Plan& plan, int slots) {
  const int buckets = static_cast<int>(plan.buckets().size());
  std::vector<int64_t> elements(slots == 0 ? buckets : std::min(slots, buckets), 0);
  for (int bucket = 0; bucket < buckets; ++bucket) {
    int64_t& slot = elements[SlotOf(bucket, slots)];
    slot = std::max(slot, plan.buckets()[bucket].numel);
  }
  return elements;
}

}  // namespace gradsync
