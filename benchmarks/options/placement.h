// Where the processes of a measured job run: which hosts workers and servers are on, and which
// shares of the gradient suit servers there.
//
// `servers` is what --servers says: with `mixed` it counts the dedicated machines, and one more
// server runs beside each worker; otherwise it counts all servers; 0 without servers (a ring), when
// every worker has a host of its own. Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_PLACEMENT_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_PLACEMENT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

// Whether there can be such a job: colocated servers are at most as many as workers; mixed ones
// have dedicated machines, fewer than workers (with as many, the servers beside workers would own
// nothing, and it would be dedicated placement).
bool PlacementFits(absl::string_view placement, int workers, int servers);

struct PlacedServers {
  std::string placement;
  int count = 0;
};

// What a sweep takes for each topology: under ps, every placement with every count; under others
// one without servers.
std::vector<PlacedServers> PlaceServers(absl::string_view topology,
                                        const std::vector<std::string>& placements,
                                        const std::vector<int>& counts);

// The following expect that it fits.

// Processes that are servers.
int ServerProcesses(absl::string_view placement, int workers, int servers);

// The host of each process, workers by rank and then servers, counted from 0 without gaps.
std::vector<int> HostsOf(absl::string_view placement, int workers, int servers);

// How many hosts that takes.
int HostCount(absl::string_view placement, int workers, int servers);

// The weights that a job chooses by itself (join/server_weights.h); empty without servers.
std::vector<double> PlacedWeights(absl::string_view placement, int workers, int servers);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_PLACEMENT_H_
