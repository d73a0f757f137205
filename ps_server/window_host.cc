#include "ps_server/window_host.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/window_group.h"

namespace gradsync {
namespace {

absl::Status CheckHosts(const Roster& roster) {
  GS_ASSIGN_OR_RETURN(const proto::Host own, OwnHost());
  for (int rank = 0; rank < roster.terms().world_size(); ++rank) {
    const proto::Host& host = roster.host(rank);
    if (host.key() == own.key()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "shm: expected workers and servers on one host; ",
        roster.ServerName(roster.terms().server_index()), " is on ", own.name(), " (", own.key(),
        "), ", roster.Name(rank), " on ", host.name(), " (", host.key(), "); use --link=grpc"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<proto::Host> OwnHost() {
  GS_ASSIGN_OR_RETURN(const HostIdentity identity, ReadHostIdentity());
  proto::Host host;
  host.set_key(identity.Key());
  host.set_name(identity.hostname);
  return host;
}

absl::StatusOr<std::unique_ptr<WindowShard>> MakeWindowShard(const Roster& roster,
                                                             WindowHostOptions options) {
  GS_RETURN_IF_ERROR(CheckHosts(roster));
  const proto::Terms& terms = roster.terms();
  WindowShardOptions shard;
  for (int rank = 0; rank < terms.world_size(); ++rank) shard.names.push_back(roster.Name(rank));
  for (int i = 0; i < roster.servers().size(); ++i) {
    shard.names.push_back(roster.ServerName(i));
  }
  shard.plan = roster.plan();
  shard.shards = std::move(options.shards);
  shard.server = terms.server_index();
  shard.site = terms.update_site();
  shard.greeting = WindowGroup::PsGreeting(roster.run_id(), roster.attempt(), shard.plan);
  shard.timeout = options.timeout;
  shard.on_failure = std::move(options.on_failure);
  return WindowShard::Create(std::move(shard));
}

}  // namespace gradsync
