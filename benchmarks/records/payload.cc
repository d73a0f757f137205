#include "benchmarks/records/payload.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"
#include "core/plan/sharding.h"

namespace gradsync {

absl::StatusOr<std::vector<Flow>> JobFlows(const Plan& plan, const PlacedJob& job,
                                           const std::vector<double>& weights,
                                           const std::vector<int>& gathers) {
  const bool sharded = plan.slots().parameters > 0;
  const Returned returned =
      job.spec.update == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  switch (job.spec.topology) {
    case Topology::kLocal:
      return std::vector<Flow>();
    case Topology::kRing:
      return sharded ? RingShardedStepFlows(plan, gathers) : RingStepFlows(plan, returned);
    case Topology::kPs:
      break;
  }
  GS_ASSIGN_OR_RETURN(const ShardMap shards,
                      ShardMap::Create(plan, weights.empty() ? PlacedWeights(job) : weights));
  return sharded ? PsShardedStepFlows(plan, shards, gathers) : PsStepFlows(plan, shards, returned);
}

std::vector<Payload> PayloadByHost(const std::vector<Payload>& processes,
                                   const std::vector<Flow>& flows, const std::vector<int>& hosts) {
  std::vector<Payload> payload(*std::max_element(hosts.begin(), hosts.end()) + 1);
  for (size_t p = 0; p < processes.size(); ++p) {
    payload[hosts[p]].tx_bytes += processes[p].tx_bytes;
    payload[hosts[p]].rx_bytes += processes[p].rx_bytes;
  }
  for (const Flow& flow : flows) {
    if (hosts[flow.from] != hosts[flow.to]) continue;
    payload[hosts[flow.from]].tx_bytes -= static_cast<double>(flow.bytes);
    payload[hosts[flow.to]].rx_bytes -= static_cast<double>(flow.bytes);
  }
  return payload;
}

void SetWire(const std::vector<Payload>& nodes, proto::Run* run) {
  Payload most;
  double sent = 0;
  for (const Payload& node : nodes) {
    most.tx_bytes = std::max(most.tx_bytes, node.tx_bytes);
    most.rx_bytes = std::max(most.rx_bytes, node.rx_bytes);
    sent += node.tx_bytes;
  }
  run->set_wire_tx_bytes_max_node(most.tx_bytes);
  run->set_wire_rx_bytes_max_node(most.rx_bytes);
  run->set_wire_tx_bytes_total(sent);
}

}  // namespace gradsync
