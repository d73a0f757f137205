#ifndef GRADSYNC_CORE_SHARED_MEMORY_MESH_ADDRESSES_H_
#define GRADSYNC_CORE_SHARED_MEMORY_MESH_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"

namespace gradsync {

// Collective, before WindowMesh::Connect() between all ranks of `channel`: returns where each one's
// mesh listens. `make_mesh` makes this rank's and returns its address; it is not called where the
// kernel does not say which host this is. A rank that cannot take part tells the others too, so that
// nobody waits for it.
//
// Errors: those of make_mesh and of the channel; UNAVAILABLE naming a rank that cannot take part, and
// why; FAILED_PRECONDITION naming two ranks of different hosts.
absl::StatusOr<std::vector<std::string>> ExchangeMeshAddresses(
    SideChannel& channel, const std::function<absl::StatusOr<std::string>()>& make_mesh,
    Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_MESH_ADDRESSES_H_
