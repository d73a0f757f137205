#include "worker/model_places.h"

#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/job_spec.h"
#include "gradsync/join/sync_factory.h"
#include "worker/pipeline/slice_link.h"

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
    if (host == kApart || host != hosts->front()) return kLinkBetweenHosts;
  }
  return Link::kShm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SliceLink>> CreateSliceLink(Link link, const WorkerGroup& group) {
  if (link == Link::kAuto) {
    GS_ASSIGN_OR_RETURN(link, Resolve(group));
  }
  if (link == Link::kGrpc || link == Link::kTcp) {
    return NewStreamSliceLink(group, TensorLinkOf(link, group));
  }
  if (link == Link::kShm) return NewWindowSliceLink(group);
  return FlagError("tensor_link", "auto, grpc, tcp or shm", std::string(LinkName(link)));
}

absl::StatusOr<std::unique_ptr<ModelPlaces>> ModelPlaces::Open(const Member& member,
                                                               const ModelLinks& links) {
  std::unique_ptr<ModelPlaces> places(new ModelPlaces());
  const WorkerGroup& all = member.group();
  const Mesh& mesh = member.mesh();
  if (!mesh.cuts_model()) return places;
  places->replicas_ = std::make_unique<SideChannel>(SubGroup(all, mesh, mesh.samples()), "job");
  if (mesh.has_pipeline()) {
    const WorkerGroup stages = SubGroup(all, mesh, MeshDimension::kPipeline);
    places->stage_link_ = std::make_unique<StageLink>(stages, TensorLinkOf(links.stages, all),
                                                      links.stages, member.activity());
    places->stages_ = std::make_unique<SideChannel>(stages, "stages");
    places->pipeline_ = {places->stage_link_.get(), places->stages_.get(), places->replicas_.get()};
  }
  if (mesh.has_slices()) {
    absl::StatusOr<std::unique_ptr<SliceLink>> link =
        CreateSliceLink(links.slices, SubGroup(all, mesh, MeshDimension::kTensor));
    if (!link.ok()) return member.Explain(link.status());
    places->slice_link_ = std::move(*link);
    places->slice_ = {places->slice_link_.get(), places->replicas_.get()};
  }
  return places;
}

}  // namespace gradsync
