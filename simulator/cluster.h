// What the simulator is told about machines: who runs where, how fast interfaces are, what messages
// cost.
//
// Plain values without invariants of their own; CheckCluster() says what is expected of them.
// Times are in seconds, sizes in bytes, as in core/plan/cost_model.h. Nothing here blocks.

#ifndef GRADSYNC_SIMULATOR_CLUSTER_H_
#define GRADSYNC_SIMULATOR_CLUSTER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/plan/ring_schedule.h"
#include "core/plan/shard_map.h"
#include "simulator/network.h"

namespace gradsync {

// The constants that theory cannot give. Each is independent of topology, number of workers and
// model, so a probe of some configurations (calibration.h) is enough for all others. The defaults
// are what a cluster with TCP over Ethernet and no probe is assumed to have.
struct LinkConstants {
  // Payload over nominal rate of an interface. Default: TCP/IP and Ethernet frame 1,448 bytes of
  // payload in 1,538.
  double rate_factor = 0.94;
  // From the last byte leaving a host to its receiver acting on it: wire, switch, kernel, wake-up.
  double latency = 50e-6;
  // What each message occupies the interface for, both where it leaves and where it arrives, on top
  // of its bytes. Covers headers and the window update that a message waits for
  // (docs/internals/grpc_link.md).
  double seconds_per_message = 10e-6;
  // What each step costs beyond what is modelled; counts as exposed communication.
  double seconds_per_step = 0;
  // What an interface that was idle lets pass at once, each way: the depth of an emulated link's
  // token bucket.
  double burst_bytes = 0;
  CoreCosts cores = {};
};

// A job's processes and the network between them. Every host has one full-duplex interface; hosts
// meet in a switch that is never the bottleneck; what processes of one host tell each other is free
// and takes no time.
struct Cluster {
  bool ring = true;  // otherwise parameter servers
  Placement placement = Placement::kDedicated;
  int servers = 0;  // kMixed: the dedicated ones; MixedShares() weights them and the others
  // kParameters when owners update: those come back, uncompressed, and owners spend the update's
  // time.
  Returned returned = Returned::kMean;

  // Other than bsp: parameter servers and kParameters only.
  Consistency consistency;

  double bytes_per_second = 0;  // of an interface, each way, nominal
  LinkConstants constants;

  // Of the real backends: tokens under way per rank (allreduce/ring_tokens.h), chunks that workers
  // may push ahead of a stripe's results (core/plan/shard_map.h), connections per pair.
  int ring_lead = kRingLead;
  int lead = kPsLead;
  int ring_connections = 4;
  int ps_connections = 2;
  // Where servers alone keep parameters: whether word that they have used a gradient overtakes
  // parameters on its stream, and requests for parameters overtake gradients.
  bool urgent_notices = true;

  // By rank, how many times as long as the profile says its forward, backward and update take;
  // empty: 1 for all.
  std::vector<double> slowness;

  // Payload rate of an interface.
  double rate() const { return bytes_per_second * constants.rate_factor; }
};

// Errors: INVALID_ARGUMENT naming what was expected and found: a rate and slowness above 0,
// constants and costs that are not negative, lead and connections of at least 1, at least one server
// unless it is a ring or mixed, at most `workers` colocated ones, slowness for each worker or none,
// bsp unless servers update.
absl::Status CheckCluster(const Cluster& cluster, int workers);

// Servers in all: 0 for a ring, `workers + servers` when mixed.
int ServerProcesses(const Cluster& cluster, int workers);

// Host of each process, workers first, and the servers' weights, as core/plan/wire_traffic.h and
// core/plan/shard_map.h have them. Under kMixed with at least as many dedicated servers as workers,
// where the others own nothing, these get a weight that is positive and too small for a chunk.
std::vector<int> ProcessHosts(const Cluster& cluster, int workers);
std::vector<double> ServerWeights(const Cluster& cluster, int workers);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_CLUSTER_H_
