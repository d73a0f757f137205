#include "ddp/parameter_gathers.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/bucket_slots.h"

namespace gradsync {

absl::StatusOr<std::vector<std::vector<int>>> UnitBuckets(
    const Plan& plan, const std::vector<std::vector<std::string>>& units) {
  absl::flat_hash_map<std::string, int> bucket_of;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      bucket_of[plan.tensors()[placed.tensor].name] = static_cast<int>(b);
    }
  }
  std::vector<std::vector<int>> buckets;
  for (const std::vector<std::string>& unit : units) {
    std::vector<int>& of_unit = buckets.emplace_back();
    for (const std::string& parameter : unit) {
      const auto found = bucket_of.find(parameter);
      if (found == bucket_of.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("units: expected each trainable parameter in one, found ", parameter,
                         ", which is in two or not trainable"));
      }
      of_unit.push_back(found->second);
      bucket_of.erase(found);
    }
    std::sort(of_unit.begin(), of_unit.end());
    of_unit.erase(std::unique(of_unit.begin(), of_unit.end()), of_unit.end());
  }
  if (bucket_of.empty()) return buckets;
  return absl::InvalidArgumentError(
      absl::StrCat("units: expected each trainable parameter in one, found ",
                   bucket_of.begin()->first, " in none"));
}

// Buckets whose numbers differ by less than the number of slots have different slots.
int ParameterSlotsFor(const std::vector<std::vector<int>>& units) {
  int slots = 1;
  int first = 0;  // of the last unit that has buckets
  int last = -1;
  for (const std::vector<int>& unit : units) {
    if (unit.empty()) continue;
    if (last < 0) {
      first = unit.front();
      last = unit.back();
    }
    slots = std::max(slots, std::max(last, unit.back()) - std::min(first, unit.front()) + 1);
    first = unit.front();
    last = unit.back();
  }
  return slots;
}

ParameterGathers::ParameterGathers(GradientSync* sync, int buckets, int slots,
                                   std::vector<std::vector<int>> units)
    : sync_(sync), slots_(slots), units_(std::move(units)), here_(buckets) {}

void ParameterGathers::Begin(int bucket) {
  if (here_[bucket].has_value()) return;
  for (int other = SlotOf(bucket, slots_); other < static_cast<int>(here_.size());
       other += slots_) {
    here_[other].reset();
  }
  here_[bucket] = sync_->Gather(bucket);
  ++gathers_;
}

absl::Status ParameterGathers::Need(int unit, int next, Deadline deadline) {
  for (int bucket : units_[unit]) Begin(bucket);
  if (next >= 0) {
    for (int bucket : units_[next]) Begin(bucket);
  }
  for (int bucket : units_[unit]) GS_RETURN_IF_ERROR(here_[bucket]->Wait(deadline));
  return absl::OkStatus();
}

absl::Status ParameterGathers::NeedBucket(int bucket, Deadline deadline) {
  Begin(bucket);
  return here_[bucket]->Wait(deadline);
}

}  // namespace gradsync
