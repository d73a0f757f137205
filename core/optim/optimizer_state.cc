#include "core/optim/optimizer_state.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

// Calls `visit(tensor, begin_in_tensor, begin_in_range, count)` for each tensor that has elements
// in `range`.
template <typename Visit>
void ForEachOverlap(const Plan& plan, int bucket, ElementRange range, Visit visit) {
  const std::vector<PlacedTensor>& all = plan.buckets()[bucket].tensors;
  auto placed = std::partition_point(all.begin(), all.end(), [&](const PlacedTensor& tensor) {
    return tensor.offset + plan.tensors()[tensor.tensor].numel() <= range.begin;
  });
  for (; placed != all.end() && placed->offset < range.end; ++placed) {
    const TensorSpec& tensor = plan.tensors()[placed->tensor];
    const int64_t begin = std::max(range.begin, placed->offset);
    const int64_t end = std::min(range.end, placed->offset + tensor.numel());
    if (begin < end) visit(tensor, begin - placed->offset, begin - range.begin, end - begin);
  }
}

}  // namespace

void ScatterSlot(const Plan& plan, int bucket, ElementRange range, const std::string& slot,
                 const float* data, OptimizerState* state) {
  ForEachOverlap(plan, bucket, range,
                 [&](const TensorSpec& tensor, int64_t to, int64_t from, int64_t count) {
                   std::vector<float>& values = state->slots[tensor.name][slot];
                   values.resize(tensor.numel());
                   std::copy_n(data + from, count, values.begin() + to);
                 });
}

void GatherSlot(const Plan& plan, int bucket, ElementRange range, const std::string& slot,
                const OptimizerState& state, float* data) {
  std::fill_n(data, range.size(), 0.0f);
  ForEachOverlap(plan, bucket, range,
                 [&](const TensorSpec& tensor, int64_t from, int64_t to, int64_t count) {
                   const auto slots = state.slots.find(tensor.name);
                   if (slots == state.slots.end()) return;
                   const auto values = slots->second.find(slot);
                   if (values == slots->second.end()) return;
                   std::copy_n(values->second.begin() + from, count, data + to);
                 });
}

bool HasState(const Plan& plan, int bucket, ElementRange range, const OptimizerState& state) {
  bool found = false;
  ForEachOverlap(plan, bucket, range, [&](const TensorSpec& tensor, int64_t, int64_t, int64_t) {
    const auto slots = state.slots.find(tensor.name);
    found = found || (slots != state.slots.end() && !slots->second.empty());
  });
  return found;
}

absl::Status CheckState(const Plan& plan, const OptimizerState& state) {
  absl::flat_hash_map<std::string, int64_t> sizes;
  for (const TensorSpec& tensor : plan.tensors()) sizes[tensor.name] = tensor.numel();
  const std::vector<std::string> known = SlotNames(plan.optimizer());
  for (const auto& [name, slots] : state.slots) {
    const auto size = sizes.find(name);
    if (size == sizes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state for ", name, ": the plan has no such parameter"));
    }
    for (const auto& [slot, values] : slots) {
      if (std::find(known.begin(), known.end(), slot) == known.end()) {
        return absl::InvalidArgumentError(absl::StrCat("optimizer state ", slot, " of ", name,
                                                       ": the plan's optimizer is ",
                                                       OptimizerKindName(plan.optimizer().kind)));
      }
      if (static_cast<int64_t>(values.size()) != size->second) {
        return absl::InvalidArgumentError(absl::StrCat("optimizer state ", slot, " of ", name,
                                                       ": expected ", size->second,
                                                       " elements, found ", values.size()));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gradsync
