#ifndef GRADSYNC_SIMULATOR_MAKE_EXCHANGE_H_
#define GRADSYNC_SIMULATOR_MAKE_EXCHANGE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "simulator/cluster.h"
#include "simulator/event_queue.h"
#include "simulator/exchange.h"

namespace gradsync {

// The exchange of the cluster's topology. `cluster` has been checked for as many workers as the
// plan has; `owner_update`: seconds of updating all parameters, under update at the owner. `queue`
// must outlive the result. Errors: those of ShardMap::Create().
absl::StatusOr<std::unique_ptr<SimulatedExchange>> MakeExchange(
    const Plan& plan, const Cluster& cluster, double owner_update, EventQueue* queue,
    ExchangePlace place, SimulatedExchange::Resolved resolved);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_MAKE_EXCHANGE_H_
