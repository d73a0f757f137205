#ifndef GRADSYNC_CORE_PIPELINE_WINDOW_SLICE_LINK_H_
#define GRADSYNC_CORE_PIPELINE_WINDOW_SLICE_LINK_H_

#include <memory>

#include "core/group/worker_group.h"
#include "core/pipeline/slice_link.h"

namespace gradsync {

// A SliceLink between slices of one host, which map each other's memory. Each puts its tensor, piece
// by piece, into a window (core/shared_memory/window.h), and when all have, each adds up what it
// needs:
// the same sums as over streams, to the bit. `group`: the slices (SubGroup() along
// MeshDimension::kTensor). Connect() also fails with FAILED_PRECONDITION for slices of other hosts.
std::unique_ptr<SliceLink> NewWindowSliceLink(const WorkerGroup& group);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_WINDOW_SLICE_LINK_H_
