#include "simulator/exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"
#include "simulator/ps_exchange.h"
#include "simulator/ring_exchange.h"

namespace gradsync {

ChunkTable::ChunkTable(const Plan& plan, Returned returned) {
  const double all = static_cast<double>(plan.total_bytes());
  for (const BucketPlan& bucket : plan.buckets()) {
    first_.push_back(count());
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int64_t elements = bucket.layout.range(slot).size();
      const bool empty = elements == 0;
      const bool returns = !empty && plan.slots().parameters == 0;
      gradient_bytes_.push_back(empty ? 0 : GradientForm(plan.codec(), elements).bytes());
      returned_bytes_.push_back(
          returns ? ReturnedForm(plan.codec(), elements, plan.world_size(), returned).bytes() : 0);
      parameter_bytes_.push_back(4 * elements);
      shares_.push_back(4 * elements / all);
    }
  }
}

ChunkId ChunkTable::id(int number) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), number);
  const int bucket = static_cast<int>(after - first_.begin()) - 1;
  return {bucket, number - first_[bucket]};
}

SimulatedNetwork::Options NetworkOptions(const Cluster& cluster) {
  return {cluster.rate(), cluster.constants.latency, cluster.constants.seconds_per_message,
          cluster.constants.burst_bytes, cluster.constants.cores};
}

ExchangePlace WholeNetwork(SimulatedNetwork* network) {
  ExchangePlace place;
  place.network = network;
  place.processes.resize(network->processes());
  std::iota(place.processes.begin(), place.processes.end(), 0);
  return place;
}

SimulatedExchange::SimulatedExchange(const Plan& plan, const Cluster& cluster, ExchangePlace place,
                                     Resolved resolved)
    : plan_(plan),
      world_size_(plan.world_size()),
      keeps_parameters_(plan.slots().parameters > 0),
      chunks_(plan, cluster.returned),
      resolved_(std::move(resolved)),
      place_(std::move(place)),
      numbers_(place_.network->processes(), -1) {
  for (size_t p = 0; p < place_.processes.size(); ++p) {
    numbers_[place_.processes[p]] = static_cast<int>(p);
  }
}

void SimulatedExchange::SendMessage(SimulatedMessage message) {
  message.from = place_.processes[message.from];
  message.to = place_.processes[message.to];
  message.receiver = this;
  place_.network->Send(message);
}

void SimulatedExchange::OnMessage(const SimulatedMessage& message) {
  SimulatedMessage own = message;
  own.from = numbers_[message.from];
  own.to = numbers_[message.to];
  OnExchanged(own);
}

absl::StatusOr<std::unique_ptr<SimulatedExchange>> MakeExchange(
    const Plan& plan, const Cluster& cluster, double owner_update, EventQueue* queue,
    ExchangePlace place, SimulatedExchange::Resolved resolved) {
  std::unique_ptr<SimulatedExchange> exchange;
  if (cluster.ring) {
    exchange = std::make_unique<RingExchange>(plan, cluster, owner_update, queue, std::move(place),
                                              std::move(resolved));
    return exchange;
  }
  GS_ASSIGN_OR_RETURN(ShardMap shards,
                      ShardMap::Create(plan, ServerWeights(cluster, plan.world_size())));
  exchange = std::make_unique<PsExchange>(plan, std::move(shards), cluster, owner_update, queue,
                                          std::move(place), std::move(resolved));
  return exchange;
}

}  // namespace gradsync
