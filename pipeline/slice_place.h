#ifndef GRADSYNC_PIPELINE_SLICE_PLACE_H_
#define GRADSYNC_PIPELINE_SLICE_PLACE_H_

#include "group/side_channel.h"
#include "pipeline/slice_link.h"

namespace gradsync {

// A rank's place among those that compute slices of one model. Points at what outlives it.
struct SlicePlace {
  SliceLink* link = nullptr;        // not connected yet
  SideChannel* replicas = nullptr;  // of the ranks that have the same slice of other replicas
};

}  // namespace gradsync

#endif  // GRADSYNC_PIPELINE_SLICE_PLACE_H_
