// How long an exchange takes, as closed forms. docs/compare/cost_model.md derives them; wire_traffic.h has
// the exact bytes that they approximate.
//
// Every topology is described by one number, its *load factor*: bytes in the busier direction of
// the busiest host, in units of the gradient's bytes M. With B the bandwidth of a host's interface
// in each direction (full duplex), push and pull pipelined, and traffic within a host free, an
// exchange takes  factor * M / B  at best, to which ExchangeSeconds() adds the filling of the
// pipeline and a cost per message.
//
// n is the number of workers, k of servers. Arguments are assumed to be in their ranges: n >= 1.
// Pure functions, thread-safe.

#ifndef GRADSYNC_CORE_PLAN_COST_MODEL_H_
#define GRADSYNC_CORE_PLAN_COST_MODEL_H_

#include <vector>

namespace gradsync {

// 2(n-1)/n: each rank sends every chunk but one, once in each phase. Nothing that leaves sums on
// all ranks can do with less.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009.
double RingLoad(int workers);

// max(1, n/k), k >= 1: a worker sends everything once, a server receives its k-th part n times.
// Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
double DedicatedPsLoad(int workers, int servers);

// (n+k-2)/k, 1 <= k <= n: servers on the hosts of k of the workers. Such a host takes the k-th part
// from n-1 others and sends its worker's other (k-1)/k away. As the ring for k = n.
// Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in
// Heterogeneous GPU/CPU Clusters", OSDI 2020, whose colocated case is k = n.
double ColocatedPsLoad(int workers, int servers);

// Shares of the gradient's bytes per server, for a server on each worker's host and k dedicated
// ones.
struct ServerShares {
  double colocated = 0;
  double dedicated = 0;
};

// The shares for which all hosts are equally busy: (n-k)/(n^2+kn-2k) and 2(n-1)/(n^2+kn-2k),
// 0 <= k <= n. With k >= n the colocated servers get nothing and the others 1/k. Source: as
// ColocatedPsLoad().
ServerShares MixedShares(int workers, int dedicated_servers);

// 2n(n-1)/(n^2+kn-2k), the load under MixedShares(): as the ring for k = 0, and 1 (where it stays)
// from k = n. Source: as ColocatedPsLoad().
double MixedPsLoad(int workers, int dedicated_servers);

// ShardMap weights for servers 0..n-1 on the workers' hosts and k dedicated ones after them.
// Weights must be positive, so it needs k < n; with k >= n use dedicated placement.
std::vector<double> MixedWeights(int workers, int dedicated_servers);

// Whether dedicated servers have a smaller load than the ring: n >= 3 and k > n^2/(2(n-1)).
bool DedicatedPsBeatsRing(int workers, int servers);

// The same where owners alone keep parameters, which come twice in a step and are not returned
// (docs/use/sharding.md); without what is still there when backward begins. In a ring each link carries
// n-1 of n chunks three times; servers receive everything once and send it twice, in the directions
// of workers that do the opposite. Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models", SC 2020, section 7.
double ShardedRingLoad(int workers);                      // 3(n-1)/n
double ShardedDedicatedPsLoad(int workers, int servers);  // 2 max(1, n/k)
double ShardedColocatedPsLoad(int workers, int servers);  // max(2n+k-3, n+2k-3)/k, 1 <= k <= n
double ShardedMixedPsLoad(int workers, int dedicated_servers);  // under MixedShares()

// n >= 4 and k > 2n^2/(3(n-1)).
bool DedicatedPsBeatsShardedRing(int workers, int servers);

// What of the exchange besides the topology decides its time.
struct ExchangeCost {
  double bytes = 0;                // M, gradient bytes of a step
  double bytes_per_second = 0;     // B, of a host's interface, each way; positive
  double stripe_bytes = 0;         // of one stripe: all chunks that are folded side by side
  double chunk_bytes = 0;          // of one message; 0 when messages are free
  double seconds_per_message = 0;  // alpha, on the busiest host, not hidden by anything
};

// load * ((M + stripe) / B + alpha * M / chunk): the bytes of the busiest host, plus one stripe
// more during which the pipeline fills and drains, plus alpha for each of its messages. Source:
// Hockney's alpha-beta model ("The communication challenge for MPP", 1994), as Thakur, Rabenseifner
// and Gropp apply it to collectives ("Optimization of Collective Communication Operations in
// MPICH", 2005); the stripe is the pipeline's fill, see docs/compare/cost_model.md.
double ExchangeSeconds(double load, const ExchangeCost& cost);

// nccl-tests' factor from algorithm bandwidth (M / time) to bus bandwidth of an allreduce, so that
// results for different n compare with the hardware's rate: RingLoad(n). It has no meaning for
// parameter servers, whose busiest interface depends on k.
double AllReduceBusFactor(int workers);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_COST_MODEL_H_
