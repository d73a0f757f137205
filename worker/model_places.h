// Where a rank stands among those that train one model in parts, stages or slices, and its links to
// them.

#ifndef GRADSYNC_WORKER_MODEL_PLACES_H_
#define GRADSYNC_WORKER_MODEL_PLACES_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/plan/job_spec.h"
#include "gradsync/join/join.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"

namespace gradsync {

// kGrpc, kTcp, kShm, or kAuto: shm where both ends share a host. The same on all ranks
// (JoinOptions::same_on_all_ranks).
struct ModelLinks {
  Link stages = Link::kAuto;
  Link slices = Link::kAuto;
};

// Both null in a mesh that does not cut the model. Not thread-safe.
class ModelPlaces {
 public:
  // Of all ranks that `member` has joined, in its mesh(). Collective where slices' link is kAuto:
  // blocks until all slices have said where they are, for at most group().timeout. Opens no
  // connection yet. `member` must outlive the result.
  // Errors: DEADLINE_EXCEEDED naming ranks that did not come; INVALID_ARGUMENT for another link.
  static absl::StatusOr<std::unique_ptr<ModelPlaces>> Open(const Member& member,
                                                           const ModelLinks& links);

  ModelPlaces(const ModelPlaces&) = delete;
  ModelPlaces& operator=(const ModelPlaces&) = delete;

  // In a mesh with stages, else null.
  const PipelinePlace* pipeline() const { return stage_link_ == nullptr ? nullptr : &pipeline_; }

  // In a mesh with slices, else null.
  const SlicePlace* slice() const { return slice_link_ == nullptr ? nullptr : &slice_; }

 private:
  ModelPlaces() = default;

  std::unique_ptr<StageLink> stage_link_;
  std::unique_ptr<SideChannel> stages_;
  std::unique_ptr<SliceLink> slice_link_;
  std::unique_ptr<SideChannel> replicas_;
  PipelinePlace pipeline_;
  SlicePlace slice_;
};

// The link between the slices that `group` is (SubGroup() along MeshDimension::kTensor). As
// ModelPlaces::Open() says of it.
absl::StatusOr<std::unique_ptr<SliceLink>> CreateSliceLink(Link link, const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODEL_PLACES_H_
