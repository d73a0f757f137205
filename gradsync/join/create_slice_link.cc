#include "gradsync/join/create_slice_link.h"

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/pipeline/slice_link.h"
#include "gradsync/join/sync_factory.h"

namespace gradsync {
namespace {

// What a rank that shares memory with nobody has for a host.
constexpr char kApart[] = "apart";

absl::StatusOr<Link> Resolve(const WorkerGroup& group) {
  const absl::StatusOr<HostIdentity> own = ReadHostIdentity();
  const absl::StatusOr<std::vector<std::string>> hosts =
      group.store->AllGather(group.Key("slice_hosts"), group.rank, group.world_size,
                             own.ok() ? own->Key() : kApart, Deadline::In(group.timeout));
  if (!hosts.ok()) return group.InJob(hosts.status());
  for (const std::string& host : *hosts) {
    if (host == kApart || host != hosts->front()) return Link::kGrpc;
  }
  return Link::kShm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SliceLink>> CreateSliceLink(Link link, const WorkerGroup& group) {
  if (link == Link::kAuto) {
    GS_ASSIGN_OR_RETURN(link, Resolve(group));
  }
  if (link == Link::kGrpc) return NewStreamSliceLink(group, GrpcTensorLinkOf(group));
  if (link == Link::kShm) return NewWindowSliceLink(group);
  return FlagError("tensor_link", "auto, grpc or shm", std::string(LinkName(link)));
}

}  // namespace gradsync
