// Steps of thousands of workers, by symmetry.
//
// *Ring.* All ranks do the same at the same time, each with other chunks: whenever a rank sends a
// token's k-th message, every rank sends the k-th message of the same stripe's token whose turn it
// is. So one rank is simulated, whose next rank is itself: a stripe is one token that passes the
// same link 2(n-1) times. Ranks whose chunks differ in size drift out of step, which costs between
// nothing and a stripe while a bucket drains; half a stripe is added.
//
// *Parameter servers.* There are at most three kinds of hosts, with a worker, with a server, with
// both, and two kinds of servers. Pushes to and pulls from each kind of server are streams of
// stripes; a stripe can be pulled when it has been pushed. At each moment all streams run at rates
// at which no interface is overloaded, every connection with the same bandwidth as the others, as
// far as it can use it. A server's part of a stripe is taken as its share of everything: the round
// robin carries on over stripes, and leads let workers run ahead (core/plan/shard_map.h). Leads are
// never waited for.
//
// Source of the idea of rates instead of packets: fluid models of networks, e.g. Misra, Gong and
// Towsley, "Fluid-based analysis of a network of AQM routers supporting TCP flows", SIGCOMM 2000.

#ifndef GRADSYNC_SIMULATOR_FLUID_H_
#define GRADSYNC_SIMULATOR_FLUID_H_

#include <vector>

#include "core/plan/plan.h"
#include "simulator/cluster.h"

namespace gradsync {

// Of one exchange of all buckets.
struct FluidExchange {
  std::vector<double> resolved;  // by bucket: when every worker has its result
  double tx_bytes_max_host = 0;
  double rx_bytes_max_host = 0;
  double busy_seconds = 0;  // of the busiest interface
};

// Exchanges the plan's buckets, of which bucket b is complete on all workers at `ready[b]`.
// `owner_update`: seconds of updating all parameters, where owners do. `cluster` has been checked
// and its workers are alike. Pure; thread-safe. Cost: for a ring 2(n-1) events per stripe, for
// parameter servers two per stripe.
FluidExchange SimulateFluid(const Plan& plan, const Cluster& cluster,
                            const std::vector<double>& ready, double owner_update);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_FLUID_H_
