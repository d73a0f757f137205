#include "gradsync/ddp/chunk_bytes_by_hosts.h"

#include <string>
#include <vector>

#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/plan/stripes.h"

namespace gradsync {

absl::StatusOr<int64_t> ChunkBytesByHosts(SideChannel& ranks, Deadline deadline) {
  const absl::StatusOr<HostIdentity> own = ReadHostIdentity();
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                      ranks.AllGather(own.ok() ? own->Key() : std::string(), deadline));
  for (const std::string& host : hosts) {
    if (host.empty() || host != hosts[0]) return kNetworkChunks;
  }
  return 0;
}

}  // namespace gradsync
