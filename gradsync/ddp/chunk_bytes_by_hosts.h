#ifndef GRADSYNC_GRADSYNC_DDP_CHUNK_BYTES_BY_HOSTS_H_
#define GRADSYNC_GRADSYNC_DDP_CHUNK_BYTES_BY_HOSTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"

namespace gradsync {

// Collective: PlanOptions::chunk_bytes for ranks of which nobody has asked for any. 0, which is by
// the size of buckets, where all ranks are on one host (core/base/host_identity.h); kNetworkChunks
// where they are on several, or where one cannot say on which. The same on all ranks. Errors: those
// of SideChannel::AllGather().
absl::StatusOr<int64_t> ChunkBytesByHosts(SideChannel& ranks, Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_CHUNK_BYTES_BY_HOSTS_H_
