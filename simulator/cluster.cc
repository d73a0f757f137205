#include "simulator/cluster.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/plan/cost_model.h"
#include "core/plan/wire_traffic.h"

namespace gradsync {
namespace {

absl::Status Expect(bool holds, absl::string_view what, absl::string_view expected, double found) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cluster: ", what, ": expected ", expected, ", found ", found));
}

absl::Status CheckConstants(const LinkConstants& constants) {
  GS_RETURN_IF_ERROR(Expect(constants.rate_factor > 0 && std::isfinite(constants.rate_factor),
                            "rate_factor", "more than 0", constants.rate_factor));
  const std::pair<const char*, double> times[] = {
      {"latency", constants.latency},
      {"seconds_per_message", constants.seconds_per_message},
      {"seconds_per_step", constants.seconds_per_step},
      {"burst_bytes", constants.burst_bytes},
      {"cores", constants.cores.count},
      {"cores' seconds_per_message", constants.cores.seconds_per_message},
      {"cores' seconds_per_byte", constants.cores.seconds_per_byte}};
  for (const auto& time : times) {
    GS_RETURN_IF_ERROR(Expect(time.second >= 0 && std::isfinite(time.second), time.first,
                              "at least 0", time.second));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCluster(const Cluster& cluster, int workers) {
  GS_RETURN_IF_ERROR(Expect(workers >= 1, "workers", "at least 1", workers));
  GS_RETURN_IF_ERROR(Expect(cluster.bytes_per_second > 0 && std::isfinite(cluster.bytes_per_second),
                            "bytes_per_second", "more than 0", cluster.bytes_per_second));
  GS_RETURN_IF_ERROR(CheckConstants(cluster.constants));
  const std::pair<const char*, int> counts[] = {{"ring_lead", cluster.ring_lead},
                                                {"lead", cluster.lead},
                                                {"ring_connections", cluster.ring_connections},
                                                {"ps_connections", cluster.ps_connections}};
  for (const auto& count : counts) {
    GS_RETURN_IF_ERROR(Expect(count.second >= 1, count.first, "at least 1", count.second));
  }
  const int least = cluster.placement == Placement::kMixed ? 0 : 1;
  GS_RETURN_IF_ERROR(Expect(cluster.ring || cluster.servers >= least, "servers",
                            absl::StrCat("at least ", least), cluster.servers));
  const bool colocated = !cluster.ring && cluster.placement == Placement::kColocated;
  GS_RETURN_IF_ERROR(Expect(!colocated || cluster.servers <= workers, "servers",
                            absl::StrCat("at most ", workers, " beside workers"), cluster.servers));
  const int given = static_cast<int>(cluster.slowness.size());
  GS_RETURN_IF_ERROR(Expect(given == 0 || given == workers, "slowness",
                            absl::StrCat("none or ", workers, " numbers"), given));
  if (!cluster.consistency.bulk() && (cluster.ring || cluster.returned != Returned::kParameters)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cluster: consistency: expected bsp unless servers update, found ",
                     ConsistencyName(cluster.consistency)));
  }
  for (double factor : cluster.slowness) {
    GS_RETURN_IF_ERROR(
        Expect(factor > 0 && std::isfinite(factor), "slowness", "more than 0", factor));
  }
  return absl::OkStatus();
}

int ServerProcesses(const Cluster& cluster, int workers) {
  if (cluster.ring) return 0;
  return cluster.servers + (cluster.placement == Placement::kMixed ? workers : 0);
}

std::vector<int> ProcessHosts(const Cluster& cluster, int workers) {
  const int servers = ServerProcesses(cluster, workers);
  if (cluster.ring || cluster.placement == Placement::kDedicated) {
    return DedicatedHosts(workers, servers);
  }
  return cluster.placement == Placement::kColocated ? ColocatedHosts(workers, servers)
                                                    : MixedHosts(workers, servers);
}

std::vector<double> ServerWeights(const Cluster& cluster, int workers) {
  if (cluster.ring || cluster.placement != Placement::kMixed) {
    return std::vector<double>(ServerProcesses(cluster, workers), 1);
  }
  std::vector<double> weights = MixedWeights(workers, cluster.servers);
  constexpr double kNothing = 1e-12;
  for (double& weight : weights) {
    if (weight == 0) weight = kNothing;
  }
  return weights;
}

}  // namespace gradsync
