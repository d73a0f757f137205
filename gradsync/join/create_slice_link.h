#ifndef GRADSYNC_GRADSYNC_JOIN_CREATE_SLICE_LINK_H_
#define GRADSYNC_GRADSYNC_JOIN_CREATE_SLICE_LINK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/group/worker_group.h"
#include "core/pipeline/slice_link.h"
#include "core/plan/job_spec.h"

namespace gradsync {

// The link between the slices that `group` is (SubGroup() along MeshDimension::kTensor): kGrpc,
// kShm, or with kAuto shm where all of them share a host. Collective with kAuto: blocks until all
// slices have said where they are, for at most group.timeout. Opens no connection yet. Errors:
// DEADLINE_EXCEEDED naming ranks that did not come; INVALID_ARGUMENT for another link.
absl::StatusOr<std::unique_ptr<SliceLink>> CreateSliceLink(Link link, const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_CREATE_SLICE_LINK_H_
