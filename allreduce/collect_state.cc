#include "allreduce/collect_state.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/optim/optimizer_state.h"

namespace gradsync {
namespace {

constexpr char kNoState = 0;
constexpr char kHasState = 1;

// Adds what an owner, called `name`, exported of its `ranges` of `bucket` to `state`.
absl::Status Scatter(const Plan& plan, int bucket, absl::string_view name,
                     const std::vector<ElementRange>& ranges, absl::string_view exported,
                     OptimizerState* state) {
  const auto lost = [&](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("optimizer state of bucket ", bucket, " from ", name, ": ", what));
  };
  const std::vector<std::string> slots = SlotNames(plan.optimizer());
  std::vector<float> values;
  for (const ElementRange range : ranges) {
    if (exported.empty()) return lost("ends early");
    const bool has_state = exported.front() == kHasState;
    exported.remove_prefix(1);
    if (!has_state) continue;
    values.resize(static_cast<size_t>(range.size()));
    const size_t bytes = values.size() * sizeof(float);
    for (const std::string& slot : slots) {
      if (exported.size() < bytes) return lost("ends early");
      if (bytes > 0) std::memcpy(values.data(), exported.data(), bytes);
      exported.remove_prefix(bytes);
      ScatterSlot(plan, bucket, range, slot, values.data(), state);
    }
  }
  if (!exported.empty()) return lost(absl::StrCat(exported.size(), " bytes too many"));
  return absl::OkStatus();
}

}  // namespace

void StateBytes::BeginRange(bool has_state) { bytes_.push_back(has_state ? kHasState : kNoState); }

void StateBytes::AppendSlot(const float* values, int64_t count) {
  bytes_.append(reinterpret_cast<const char*>(values), static_cast<size_t>(count) * sizeof(float));
}

absl::StatusOr<OptimizerState> CollectState(const Plan& plan, const StateOwners& owners,
                                            int64_t steps, SideChannel& side_channel,
                                            Deadline deadline) {
  OptimizerState state;
  state.step = steps;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    GS_ASSIGN_OR_RETURN(const StateBytes own, owners.exported(bucket));
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                        side_channel.AllGather(own.bytes(), deadline));
    for (size_t r = 0; r < parts.size(); ++r) {
      const int rank = static_cast<int>(r);
      GS_RETURN_IF_ERROR(Scatter(plan, bucket, side_channel.Name(rank), owners.ranges(bucket, rank),
                                 parts[r], &state));
    }
  }
  return state;
}

}  // namespace gradsync
