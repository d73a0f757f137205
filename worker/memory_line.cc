#include "worker/memory_line.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "core/plan/kinds.h"
#include "core/plan/shard_map.h"
#include "core/plan/sharding.h"

namespace gradsync {
namespace {

double Mega(int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

}  // namespace

std::string MemoryLine(const Plan& plan, const JobSpec& spec, int own_servers, bool staged) {
  if (plan.slots() == BucketSlots()) return "";
  const absl::StatusOr<Plan> whole = plan.WithSlots(BucketSlots());
  if (!whole.ok()) return "";
  const MemoryUse use = spec.topology == Topology::kPs
                            ? PsWorkerMemory(plan, UpdateSite::kOwner)
                            : RingMemory(plan, UpdateSite::kOwner, /*rank=*/0);
  MemoryUse own;
  if (own_servers > 0) {
    const auto shards = ShardMap::Create(plan, std::vector<double>(own_servers, 1.0));
    if (shards.ok()) own = PsServerMemory(plan, UpdateSite::kOwner, shards->bytes(0));
  }
  const std::string line = absl::StrFormat(
      "rank 0 keeps %.1f MB of parameters, %.1f MB of gradients and %.1f MB of optimizer state, "
      "instead of %.1f MB",
      Mega(use.parameters + use.shard + own.shard), Mega(use.gradients + own.gradients),
      Mega(use.state + own.state),
      Mega(RingMemory(*whole, UpdateSite::kWorker, /*rank=*/0).total()));
  if (!staged) return line;
  return absl::StrFormat("%s; its GPU has %.1f MB of parameters and %.1f MB of gradients", line,
                         Mega(use.parameters), Mega(use.gradients));
}

}  // namespace gradsync
