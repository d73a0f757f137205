#include "benchmarks/ranks/meet_ranks.h"

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/host_port.h"
#include "base/local_address.h"
#include "base/status_macros.h"
#include "base/write_file.h"

namespace gradsync {

absl::StatusOr<WorkerGroup> MeetRanks(const MeetOptions& options,
                                      std::unique_ptr<GrpcStoreServer>* server) {
  WorkerGroup group;
  group.rank = options.rank;
  group.world_size = options.world_size;
  group.run_id = options.run_id;
  group.credentials = InsecureCredentials();
  group.timeout = options.timeout;
  GS_ASSIGN_OR_RETURN(HostPort master, ParseHostPort(options.master));
  GS_ASSIGN_OR_RETURN(group.address, LocalAddress(options.master, ""));
  if (options.rank == 0) {
    GS_ASSIGN_OR_RETURN(*server, GrpcStoreServer::Start(options.master, group.credentials));
    master.port = (*server)->port();
    if (!options.port_file.empty()) {
      GS_RETURN_IF_ERROR(WriteFileAtomically(
          options.port_file, absl::StrCat(FormatHostPort(master.host, master.port), "\n")));
    }
  }
  GS_ASSIGN_OR_RETURN(group.store, ConnectStore(FormatHostPort(master.host, master.port),
                                                group.credentials, Deadline::In(options.timeout)));
  return group;
}

}  // namespace gradsync
