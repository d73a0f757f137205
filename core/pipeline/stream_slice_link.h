#ifndef GRADSYNC_CORE_PIPELINE_STREAM_SLICE_LINK_H_
#define GRADSYNC_CORE_PIPELINE_STREAM_SLICE_LINK_H_

#include <memory>

#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/pipeline/slice_link.h"

namespace gradsync {

// A SliceLink with a stream between each two slices. With x bytes of a tensor and n slices each rank
// sends, and receives,
//
//   Sum      2 (n-1)/n x: the parts of others' sums, then its part of the sum, to all. (Two slices
//            send each other all of it, which is as much, and is one message instead of two.)
//   SumPart  (n-1)/n x, of a tensor that is n parts
//   Gather   (n-1) x
//
// but for elements that n does not divide. `group`: the slices (SubGroup() along
// MeshDimension::kTensor).
std::unique_ptr<SliceLink> NewStreamSliceLink(const WorkerGroup& group,
                                              std::shared_ptr<StreamLink> link);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_STREAM_SLICE_LINK_H_
