#include "core/shared_memory/mesh_addresses.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<std::vector<std::string>> ExchangeMeshAddresses(
    SideChannel& channel, const std::function<absl::StatusOr<std::string>()>& make_mesh,
    Deadline deadline) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  const absl::StatusOr<std::string> address =
      host.ok() ? make_mesh() : absl::StatusOr<std::string>(host.status());
  const std::string mine = address.ok()
                               ? absl::StrJoin({host->Key(), host->hostname, *address}, "\n")
                               : std::string(address.status().message());
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, channel.AllGather(mine, deadline));
  GS_RETURN_IF_ERROR(address.status());
  std::vector<std::string> addresses;
  std::vector<std::string> first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string name = channel.Name(static_cast<int>(rank));
    const std::vector<std::string> parts = absl::StrSplit(all[rank], '\n');
    if (parts.size() != 3) {
      return absl::UnavailableError(absl::StrCat(name, " has no shared memory: ", all[rank]));
    }
    if (rank == 0) first = parts;
    if (parts[0] != first[0]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "shm: expected all ranks on one host; ", channel.Name(0), " is on ", first[1], " (",
          first[0], "), ", name, " on ", parts[1], " (", parts[0], "); use --link=grpc"));
    }
    addresses.push_back(parts[2]);
  }
  return addresses;
}

}  // namespace gradsync
