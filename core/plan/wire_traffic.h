// Exactly what each topology puts on the wire: payload bytes and messages between every two
// processes of a job, as sums over the plan's chunks, and from them what each process and each host
// sends and receives. cost_model.h has the same as closed forms; tests/wire_bytes_test.cc compares
// both with what the transports count.
//
// Processes are numbered: worker r is process r, server s is process world_size + s. A *host* is
// what has one network interface; processes may share one, and what they send each other is free.
//
// Payload is gradients and parameters, as in core/group/wire_stats.h: no headers, credits, norms,
// optimizer state or side channel. Under kWorker means come back, under kOwner parameters, in the
// same chunks: `Returned` tells them apart, because the plan's codec (codec.h) compresses gradients
// and means but not parameters; without a codec it makes no difference. Empty chunks are no
// messages.
//
// Pure functions, thread-safe. Cost: one pass over the plan's chunks per worker.

#ifndef GRADSYNC_CORE_PLAN_WIRE_TRAFFIC_H_
#define GRADSYNC_CORE_PLAN_WIRE_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Payload in one direction between two different processes.
struct Flow {
  int from = 0;
  int to = 0;
  int64_t bytes = 0;
  int64_t messages = 0;
};

// What one process or one host sends and receives.
struct NodeTraffic {
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
  int64_t tx_messages = 0;
  int64_t rx_messages = 0;

  friend bool operator==(const NodeTraffic& a, const NodeTraffic& b) {
    return a.tx_bytes == b.tx_bytes && a.rx_bytes == b.rx_bytes && a.tx_messages == b.tx_messages &&
           a.rx_messages == b.rx_messages;
  }
};

// One step, or one broadcast of all parameters from rank 0, over the ring: from each rank to the
// next. Source: ring_schedule.h.
std::vector<Flow> RingStepFlows(const Plan& plan, Returned returned = Returned::kMean);
std::vector<Flow> RingBroadcastFlows(const Plan& plan);

// The same through windows, memory that all ranks map: each rank stores the chunks that it owns
// into every other rank's window; a broadcast brings all of rank 0's parameters to every other
// rank, one message per bucket. What a rank reads of others' gradients is not counted: nobody sends
// it. With servers, these store the chunks that they own into every worker's window; a broadcast
// does without them. Never compressed.
std::vector<Flow> WindowStepFlows(const Plan& plan);
std::vector<Flow> WindowStepFlows(const Plan& plan, const ShardMap& shards);
std::vector<Flow> WindowBroadcastFlows(const Plan& plan);

// The same over parameter servers. A step: each worker pushes each chunk to its server, and each
// server sends each of its chunks to every worker. A broadcast: rank 0 gives each chunk to its
// server, which sends it to all other workers. `shards` must be made from `plan`.
// Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
std::vector<Flow> PsStepFlows(const Plan& plan, const ShardMap& shards,
                              Returned returned = Returned::kMean);
std::vector<Flow> PsBroadcastFlows(const Plan& plan, const ShardMap& shards);

// Sums of `flows` by process, 0..processes-1; what the processes' counters show.
std::vector<NodeTraffic> ProcessTraffic(const std::vector<Flow>& flows, int processes);

// Sums by host, without what stays within one. `hosts[p]` is the host of process p, any number from
// 0 up; the result has an entry for each host up to the largest.
std::vector<NodeTraffic> HostTraffic(const std::vector<Flow>& flows, const std::vector<int>& hosts);

// Bytes, or messages, in the busier direction of the busiest node; 0 without nodes. Full duplex:
// both directions run at the same time.
int64_t BusiestBytes(const std::vector<NodeTraffic>& nodes);
int64_t BusiestMessages(const std::vector<NodeTraffic>& nodes);

// Which host each process of a job runs on; for HostTraffic().
//   dedicated  every worker and every server on a host of its own
//   colocated  server s on worker s's host; servers <= workers
//   mixed      servers 0..workers-1 on the workers' hosts, the others on hosts of their own;
//              servers >= workers
// The weights that suit a mixed placement are MixedShares() in cost_model.h.
std::vector<int> DedicatedHosts(int workers, int servers);
std::vector<int> ColocatedHosts(int workers, int servers);
std::vector<int> MixedHosts(int workers, int servers);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_WIRE_TRAFFIC_H_
