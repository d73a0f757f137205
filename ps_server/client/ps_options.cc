#include "ps_server/client/ps_options.h"

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/sync/agree_on_plan.h"

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

absl::StatusOr<proto::Hello> MakeHello(const PsOptions& options, const Plan& plan) {
  proto::Hello hello;
  hello.set_run_id(options.group.run_id);
  hello.set_attempt(options.group.attempt);
  hello.set_rank(options.group.rank);
  hello.set_number(options.group.RankOfJob(options.group.rank) + 1);
  for (const int number : options.group.ranks_of_job) hello.add_numbers(number);
  hello.set_address(options.group.address);
  hello.set_store(options.group.store_address);
  hello.set_servers_in_workers(options.in_workers);
  proto::Terms& terms = *hello.mutable_terms();
  terms.set_world_size(options.group.world_size);
  terms.set_connections(options.connections);
  for (double weight : options.weights) terms.add_weights(weight);
  const bool at_owner = options.update_site == UpdateSite::kOwner;
  terms.set_update_site(at_owner ? proto::OWNER : proto::WORKER);
  terms.set_fingerprint(plan.fingerprint());
  if (!options.consistency.bulk()) terms.set_consistency(ConsistencyName(options.consistency));
  if (options.group.recorder != nullptr) {
    terms.set_trace_first_step(options.group.recorder->first_step());
    terms.set_trace_last_step(options.group.recorder->last_step());
  }
  if (options.windows) {
    GS_ASSIGN_OR_RETURN(const HostIdentity host, ReadHostIdentity());
    hello.mutable_host()->set_key(host.Key());
    hello.mutable_host()->set_name(host.hostname);
    for (const std::string& server : options.servers) hello.add_servers(server);
    for (const int number : options.numbers) hello.add_server_numbers(number);
    terms.set_windows(true);
  }
  return hello;
}

absl::Status AgreeOnTerms(const PsOptions& options, const Plan& plan, SideChannel& side_channel,
                          Deadline deadline) {
  GS_RETURN_IF_ERROR(AgreeOnPlan(side_channel, plan, deadline));
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel.AllGather(ConsistencyName(options.consistency), deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("consistency differs: ", side_channel.Name(0),
                                                      " has ", all[0], ", ",
                                                      side_channel.Name(rank), " has ", all[rank]));
  }
  return absl::OkStatus();
}

absl::Status CheckCodec(const PsOptions& options, const Plan& plan) {
  if (!options.consistency.bulk()) {
    GS_RETURN_IF_ERROR(CheckUncompressed(
        plan.codec(), absl::StrCat("under ", ConsistencyName(options.consistency),
                                   " there is no mean that could be rounded once")));
  }
  if (!options.windows) return absl::OkStatus();
  return CheckUncompressed(plan.codec(), "servers read their workers' memory, which is no wire");
}

}  // namespace gradsync
