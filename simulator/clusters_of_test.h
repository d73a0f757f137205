// Clusters and probes of tests.

#ifndef GRADSYNC_SIMULATOR_CLUSTERS_OF_TEST_H_
#define GRADSYNC_SIMULATOR_CLUSTERS_OF_TEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "simulator/calibration.h"
#include "simulator/cluster.h"

namespace gradsync {

// Bytes per second of every interface.
constexpr double kTestRate = 1e8;

// A ring whose messages cost nothing but their bytes.
inline Cluster FreeMessages() {
  Cluster cluster;
  cluster.bytes_per_second = kTestRate;
  cluster.constants = {1, 0, 0, 0};
  return cluster;
}

// `ring` with servers instead.
inline Cluster WithServers(const Cluster& ring, Placement placement, int servers) {
  Cluster cluster = ring;
  cluster.ring = false;
  cluster.placement = placement;
  cluster.servers = servers;
  return cluster;
}

// `ring` and servers in every place, for `n` workers.
inline std::vector<Cluster> AllClusters(const Cluster& ring, int n) {
  std::vector<Cluster> clusters = {ring};
  for (int k : {1, 2, 3, 4}) clusters.push_back(WithServers(ring, Placement::kDedicated, k));
  for (int k : {1, 2, n}) {
    if (k <= n) clusters.push_back(WithServers(ring, Placement::kColocated, k));
  }
  for (int k : {1, 2}) {
    if (k < n) clusters.push_back(WithServers(ring, Placement::kMixed, k));
  }
  return clusters;
}

// "ring n=4", "mixed n=4 k=2".
inline std::string NameOf(const Cluster& cluster, int n) {
  const std::string workers = "n=" + std::to_string(n);
  if (cluster.ring) return "ring " + workers;
  return std::string(PlacementName(cluster.placement)) + " " + workers +
         " k=" + std::to_string(cluster.servers);
}

// An exchange of one bucket on links of 400 Mbit/s, by `servers` or, without any, by a
// ring. What it took is not in it yet.
inline Probe ProbeOf(int n, int servers, int64_t numel, int64_t chunk_bytes) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  Probe probe;
  probe.plan =
      *Plan::FromBuckets({{"a", {numel}, {1}, 0}}, {{0}}, optimizer, n, chunk_bytes, Codec());
  probe.cluster.ring = servers == 0;
  probe.cluster.servers = servers;
  probe.cluster.bytes_per_second = 5e7;
  return probe;
}

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_CLUSTERS_OF_TEST_H_
