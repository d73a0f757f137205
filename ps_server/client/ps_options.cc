#include "ps_server/client/ps_options.h"

#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<PsOptions> CheckPsOptions(const PsOptions& options) {
  const WorkerGroup& group = options.group;
  if (options.link == nullptr || group.store == nullptr) {
    return absl::InvalidArgumentError("parameter servers: expected a link and a store, found none");
  }
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: expected 0 to ", group.world_size - 1, ", found ", group.rank));
  }
  if (options.servers.empty()) {
    return absl::InvalidArgumentError("servers: expected at least one address, found none");
  }
  std::set<std::string> addresses;
  for (const std::string& server : options.servers) {
    if (!addresses.insert(server).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers: expected each address once, found ", server, " twice"));
    }
  }
  const bool restricted = options.update_site == UpdateSite::kWorker || options.windows;
  if (!options.consistency.bulk() && restricted) {
    return absl::InvalidArgumentError(
        absl::StrCat("consistency ", ConsistencyName(options.consistency),
                     ": expected update at the owner and no windows, found ",
                     options.windows ? "windows" : "update at the worker"));
  }
  PsOptions complete = options;
  if (complete.numbers.empty()) {
    complete.numbers.resize(options.servers.size());
    std::iota(complete.numbers.begin(), complete.numbers.end(), 0);
  }
  if (complete.numbers.size() != options.servers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("numbers: expected one for each of ",
                                                   options.servers.size(), " servers, found ",
                                                   complete.numbers.size()));
  }
  if (complete.weights.empty()) complete.weights.assign(options.servers.size(), 1.0);
  if (complete.weights.size() != options.servers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("weights: expected one for each of ",
                                                   options.servers.size(), " servers, found ",
                                                   complete.weights.size()));
  }
  for (double weight : complete.weights) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights: expected positive numbers, found ", weight));
    }
  }
  if (options.connections < 1 || options.connections > 256 || options.lead < 1 ||
      options.lead > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to 256 connections and a lead of 1 to 1024 chunks, found ",
                     options.connections, " and ", options.lead));
  }
  return complete;
}

std::vector<std::string> ServerNames(const PsOptions& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < options.servers.size(); ++i) {
    names.push_back(absl::StrCat(options.in_workers ? "rank " : "server ", options.numbers[i], " (",
                                 options.servers[i], ")"));
  }
  return names;
}

}  // namespace gradsync
