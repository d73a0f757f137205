#ifndef GRADSYNC_CORE_PIPELINE_SLICE_PLACE_H_
#define GRADSYNC_CORE_PIPELINE_SLICE_PLACE_H_

#include "core/group/side_channel.h"
#include "core/pipeline/slice_link.h"

namespace gradsync {

// A rank's place among those that compute slices of one model. Points at what outlives it.
struct SlicePlace {
  SliceLink* link = nullptr;        // not connected yet
  SideChannel* replicas = nullptr;  // of the ranks that have the same slice of other replicas
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_SLICE_PLACE_H_
