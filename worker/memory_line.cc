#include "worker/memory_line.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "plan/sharded_job.h"
#include "plan/update_site.h"

namespace gradsync {
namespace {

double Mega(int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

}  // namespace

std::string MemoryLine(const Plan& plan, const JobSpec& spec, bool staged) {
  if (plan.slots() == BucketSlots()) return "";
  const absl::StatusOr<Plan> whole = plan.WithSlots(BucketSlots());
  if (!whole.ok()) return "";
  const MemoryUse use = spec.topology == Topology::kPs
                            ? PsWorkerMemory(plan, UpdateSite::kOwner)
                            : RingMemory(plan, UpdateSite::kOwner, /*rank=*/0);
  const std::string line = absl::StrFormat(
      "rank 0 keeps %.1f MB of parameters, %.1f MB of gradients and %.1f MB of optimizer state, "
      "instead of %.1f MB",
      Mega(use.parameters + use.shard), Mega(use.gradients), Mega(use.state),
      Mega(RingMemory(*whole, UpdateSite::kWorker, /*rank=*/0).total()));
  if (!staged) return line;
  return absl::StrFormat("%s; its GPU has %.1f MB of parameters and %.1f MB of gradients", line,
                         Mega(use.parameters), Mega(use.gradients));
}

}  // namespace gradsync
