#include "ps_server/client/ps_terms.h"

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
