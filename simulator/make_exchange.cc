#include "simulator/make_exchange.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/plan/shard_map.h"
#include "simulator/ps_exchange.h"
#include "simulator/ring_exchange.h"

namespace gradsync {

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
