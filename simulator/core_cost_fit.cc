#include "simulator/core_cost_fit.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"
#include "core/plan/wire_traffic.h"

namespace gradsync {
namespace {

absl::StatusOr<std::vector<Flow>> FlowsOf(const Probe& probe) {
  const Cluster& cluster = probe.cluster;
  if (cluster.ring) return RingStepFlows(probe.plan, cluster.returned);
  GS_ASSIGN_OR_RETURN(
      const ShardMap shards,
      ShardMap::Create(probe.plan, ServerWeights(cluster, probe.plan.world_size())));
  return PsStepFlows(probe.plan, shards, cluster.returned);
}

}  // namespace

absl::StatusOr<CoreCosts> FitCoreCosts(const std::vector<Probe>& probes, int cores) {
  if (cores < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("costs of cores: expected at least 1 core, found ", cores));
  }
  // Of both costs: sums of squares and products of what a core second has of each.
  double mm = 0, mb = 0, bb = 0, m = 0, b = 0;
  int count = 0;
  for (const Probe& probe : probes) {
    if (!(probe.core_seconds > 0)) continue;
    GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, FlowsOf(probe));
    double messages = 0;
    double bytes = 0;
    for (const Flow& flow : flows) {
      messages += 2 * static_cast<double>(flow.messages) / probe.core_seconds;
      bytes += 2 * static_cast<double>(flow.bytes) / probe.core_seconds;
    }
    mm += messages * messages;
    mb += messages * bytes;
    bb += bytes * bytes;
    m += messages;
    b += bytes;
    ++count;
  }
  if (count < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("costs of cores: expected at least 2 exchanges of which is known how busy the "
                     "cores were, found ",
                     count));
  }
  CoreCosts costs;
  costs.count = cores;
  const double determinant = mm * bb - mb * mb;
  if (determinant > 1e-9 * mm * bb) {
    costs.seconds_per_message = (m * bb - b * mb) / determinant;
    costs.seconds_per_byte = (b * mm - m * mb) / determinant;
  } else {
    costs.seconds_per_byte = b / bb;
  }
  if (costs.seconds_per_message < 0) {
    costs.seconds_per_message = 0;
    costs.seconds_per_byte = b / bb;
  } else if (costs.seconds_per_byte < 0) {
    costs.seconds_per_byte = 0;
    costs.seconds_per_message = m / mm;
  }
  return costs;
}

}  // namespace gradsync
