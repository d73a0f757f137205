#include "core/plan/wire_traffic.h"

#include <algorithm>
#include <numeric>

#include "core/plan/ring_schedule.h"

namespace gradsync {
namespace {

template <typename TrafficOf>
std::vector<Flow> FlowsToNext(const Plan& plan, const TrafficOf& traffic_of) {
  std::vector<Flow> flows;
  const int n = plan.world_size();
  for (int rank = 0; rank < n; ++rank) {
    const RingTraffic traffic = traffic_of(rank);
    if (traffic.tx_messages == 0) continue;
    flows.push_back({rank, RingNext(rank, n), traffic.tx_bytes, traffic.tx_messages});
  }
  return flows;
}

struct Shard {
  int64_t bytes = 0;  // of parameters
  int64_t pushed_bytes = 0;
  int64_t pulled_bytes = 0;
  int64_t messages = 0;
};

std::vector<Shard> ShardsOf(const Plan& plan, const ShardMap& shards, Returned returned) {
  std::vector<Shard> sums(shards.servers());
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (layout.range(slot).empty()) continue;
      Shard& shard = sums[shards.server({b, slot})];
      const int64_t elements = layout.range(slot).size();
      shard.bytes += 4 * elements;
      shard.pushed_bytes += GradientForm(plan.codec(), elements).bytes();
      shard.pulled_bytes +=
          ReturnedForm(plan.codec(), elements, plan.world_size(), returned).bytes();
      ++shard.messages;
    }
  }
  return sums;
}

}  // namespace

std::vector<Flow> RingStepFlows(const Plan& plan, Returned returned) {
  return FlowsToNext(plan, [&](int rank) { return StepTraffic(plan, rank, returned); });
}

std::vector<Flow> RingBroadcastFlows(const Plan& plan) {
  return FlowsToNext(plan, [&](int rank) { return BroadcastTraffic(plan, rank); });
}

std::vector<Flow> WindowStepFlows(const Plan& plan) {
  const int n = plan.world_size();
  std::vector<Flow> flows;
  for (int owner = 0; owner < n; ++owner) {
    int64_t bytes = 0;
    int64_t messages = 0;
    for (const BucketPlan& bucket : plan.buckets()) {
      for (int slot = owner; slot < bucket.layout.slots(); slot += n) {
        bytes += 4 * bucket.layout.range(slot).size();
        messages += bucket.layout.range(slot).empty() ? 0 : 1;
      }
    }
    for (int rank = 0; rank < n; ++rank) {
      if (rank != owner && messages > 0) flows.push_back({owner, rank, bytes, messages});
    }
  }
  return flows;
}

std::vector<Flow> WindowStepFlows(const Plan& plan, const ShardMap& shards) {
  std::vector<Flow> flows;
  for (const Flow& flow : PsStepFlows(plan, shards)) {
    if (flow.from >= plan.world_size()) flows.push_back(flow);
  }
  return flows;
}

std::vector<Flow> WindowBroadcastFlows(const Plan& plan) {
  std::vector<Flow> flows;
  for (int rank = 1; rank < plan.world_size(); ++rank) {
    flows.push_back({0, rank, plan.total_bytes(), static_cast<int64_t>(plan.buckets().size())});
  }
  return flows;
}

std::vector<Flow> PsStepFlows(const Plan& plan, const ShardMap& shards, Returned returned) {
  std::vector<Flow> flows;
  const int n = plan.world_size();
  const std::vector<Shard> sums = ShardsOf(plan, shards, returned);
  for (int s = 0; s < shards.servers(); ++s) {
    for (int rank = 0; rank < n && sums[s].messages > 0; ++rank) {
      flows.push_back({rank, n + s, sums[s].pushed_bytes, sums[s].messages});
      flows.push_back({n + s, rank, sums[s].pulled_bytes, sums[s].messages});
    }
  }
  return flows;
}

std::vector<Flow> PsBroadcastFlows(const Plan& plan, const ShardMap& shards) {
  std::vector<Flow> flows;
  const int n = plan.world_size();
  const std::vector<Shard> sums = ShardsOf(plan, shards, Returned::kParameters);
  for (int s = 0; s < shards.servers(); ++s) {
    if (sums[s].messages == 0) continue;
    flows.push_back({0, n + s, sums[s].bytes, sums[s].messages});
    for (int rank = 1; rank < n; ++rank) {
      flows.push_back({n + s, rank, sums[s].bytes, sums[s].messages});
    }
  }
  return flows;
}

std::vector<NodeTraffic> ProcessTraffic(const std::vector<Flow>& flows, int processes) {
  std::vector<int> hosts(processes);
  std::iota(hosts.begin(), hosts.end(), 0);
  return HostTraffic(flows, hosts);
}

std::vector<NodeTraffic> HostTraffic(const std::vector<Flow>& flows,
                                     const std::vector<int>& hosts) {
  const int count = hosts.empty() ? 0 : *std::max_element(hosts.begin(), hosts.end()) + 1;
  std::vector<NodeTraffic> nodes(count);
  for (const Flow& flow : flows) {
    const int from = hosts[flow.from];
    const int to = hosts[flow.to];
    if (from == to) continue;
    nodes[from].tx_bytes += flow.bytes;
    nodes[from].tx_messages += flow.messages;
    nodes[to].rx_bytes += flow.bytes;
    nodes[to].rx_messages += flow.messages;
  }
  return nodes;
}

int64_t BusiestBytes(const std::vector<NodeTraffic>& nodes) {
  int64_t most = 0;
  for (const NodeTraffic& node : nodes) most = std::max({most, node.tx_bytes, node.rx_bytes});
  return most;
}

int64_t BusiestMessages(const std::vector<NodeTraffic>& nodes) {
  int64_t most = 0;
  for (const NodeTraffic& node : nodes) most = std::max({most, node.tx_messages, node.rx_messages});
  return most;
}

std::vector<int> DedicatedHosts(int workers, int servers) {
  std::vector<int> hosts(workers + servers);
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

std::vector<int> ColocatedHosts(int workers, int servers) {
  std::vector<int> hosts(workers + servers);
  std::iota(hosts.begin(), hosts.begin() + workers, 0);
  std::iota(hosts.begin() + workers, hosts.end(), 0);
  return hosts;
}

// Server s on host s: the first are the workers', the others' numbers follow.
std::vector<int> MixedHosts(int workers, int servers) { return ColocatedHosts(workers, servers); }

}  // namespace gradsync
