#include "gradsync/join/server_weights.h"

#include <cmath>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"
#include "core/plan/cost_model.h"

namespace gradsync {

absl::StatusOr<ServerWeights> ParseServerWeights(absl::string_view text) {
  ServerWeights parsed;
  if (text == "auto") return parsed;
  parsed.by_host = false;
  if (text == "equal") return parsed;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    double weight = 0;
    if (!absl::SimpleAtod(item, &weight) || !(weight > 0) || !std::isfinite(weight)) {
      return FlagError("server_weights", "auto, equal, or a positive number for each server",
                       std::string(text));
    }
    parsed.weights.push_back(weight);
  }
  return parsed;
}

std::vector<double> WeightsByHost(const std::vector<std::string>& worker_hosts,
                                  const std::vector<std::string>& server_hosts) {
  const std::vector<double> equal(server_hosts.size(), 1.0);
  std::map<std::string, int> beside;  // servers by worker's host
  for (const std::string& host : worker_hosts) {
    if (!beside.insert({host, 0}).second) return equal;
  }
  std::map<std::string, int> alone;
  for (const std::string& host : server_hosts) {
    const auto worker = beside.find(host);
    if (++(worker != beside.end() ? worker->second : alone[host]) > 1) return equal;
  }
  for (const auto& [host, servers] : beside) {
    if (servers != 1) return equal;
  }
  const int workers = static_cast<int>(worker_hosts.size());
  const int dedicated = static_cast<int>(alone.size());
  if (dedicated == 0 || dedicated >= workers) return equal;
  const ServerShares shares = MixedShares(workers, dedicated);
  std::vector<double> weights;
  for (const std::string& host : server_hosts) {
    weights.push_back(alone.count(host) > 0 ? shares.dedicated : shares.colocated);
  }
  return weights;
}

}  // namespace gradsync
