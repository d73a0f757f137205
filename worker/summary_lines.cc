#include "worker/summary_lines.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
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

std::string ReplicaLine(const std::vector<StepTimes>& times, int replicas) {
  if (replicas < 2 || times.empty()) return "";
  ReplicaTimes sum;
  absl::Duration total;
  for (const StepTimes& step : times) {
    sum += step.replicas;
    total += step.total;
  }
  if (total <= absl::ZeroDuration()) return "";
  const auto percent = [total](absl::Duration part) {
    return 100 * absl::FDivDuration(part, total);
  };
  const auto mega = [&times](int64_t bytes) {
    return 1e-6 * static_cast<double>(bytes) / static_cast<double>(times.size());
  };
  return absl::StrFormat(
      "of a step %.1f %% replicate, %.1f %% scatter, %.1f %% apply, %.1f %% gather, %.1f %% "
      "reduce; "
      "device 0 does %.1f %% of the work of %d replicas, sends them %.1f MB a step and receives "
      "%.1f "
      "MB",
      percent(sum.replicate), percent(sum.scatter), percent(sum.apply), percent(sum.gather),
      percent(sum.reduce), 100 * sum.FirstShare(), replicas, mega(sum.tx_bytes),
      mega(sum.rx_bytes));
}

std::string StageLine(const std::vector<StepTimes>& times, const std::string& split) {
  const std::vector<double> shares = StageBusyShares(times);
  if (shares.empty()) return "";
  const auto percent = [](std::string* out, double share) {
    absl::StrAppendFormat(out, "%.1f %%", 100 * share);
  };
  return absl::StrCat("stages computed for ", absl::StrJoin(shares, ", ", percent),
                      " of the time; cut before ", split);
}

}  // namespace gradsync
