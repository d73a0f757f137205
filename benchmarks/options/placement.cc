#include "benchmarks/options/placement.h"

#include <algorithm>

#include "plan/cost_model.h"
#include "plan/wire_traffic.h"

namespace gradsync {

bool PlacementFits(absl::string_view placement, int workers, int servers) {
  if (placement == "colocated") return servers <= workers;
  if (placement == "mixed") return servers >= 1 && servers < workers;
  return true;
}

std::vector<PlacedServers> PlaceServers(absl::string_view topology,
                                        const std::vector<std::string>& placements,
                                        const std::vector<int>& counts) {
  if (topology != "ps") return {PlacedServers()};
  std::vector<PlacedServers> all;
  for (const std::string& placement : placements) {
    for (int count : counts) all.push_back({placement, count});
  }
  return all;
}

int ServerProcesses(absl::string_view placement, int workers, int servers) {
  return placement == "mixed" ? workers + servers : servers;
}

std::vector<int> HostsOf(absl::string_view placement, int workers, int servers) {
  const int processes = ServerProcesses(placement, workers, servers);
  if (placement == "colocated") return ColocatedHosts(workers, processes);
  if (placement == "mixed") return MixedHosts(workers, processes);
  return DedicatedHosts(workers, processes);
}

int HostCount(absl::string_view placement, int workers, int servers) {
  const std::vector<int> hosts = HostsOf(placement, workers, servers);
  return *std::max_element(hosts.begin(), hosts.end()) + 1;
}

std::vector<double> PlacedWeights(absl::string_view placement, int workers, int servers) {
  if (placement == "mixed") return MixedWeights(workers, servers);
  return std::vector<double>(ServerProcesses(placement, workers, servers), 1.0);
}

}  // namespace gradsync
