#ifndef GRADSYNC_SIMULATOR_PROBE_OF_TEST_H_
#define GRADSYNC_SIMULATOR_PROBE_OF_TEST_H_

#include <cstdint>

#include "core/plan/plan.h"
#include "simulator/calibration.h"

namespace gradsync {

// For tests: an exchange of one bucket on links of 400 Mbit/s, by `servers` or, without any, by a
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

#endif  // GRADSYNC_SIMULATOR_PROBE_OF_TEST_H_
