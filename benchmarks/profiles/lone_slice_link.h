#ifndef GRADSYNC_BENCHMARKS_PROFILES_LONE_SLICE_LINK_H_
#define GRADSYNC_BENCHMARKS_PROFILES_LONE_SLICE_LINK_H_

#include <memory>

#include "core/pipeline/slice_link.h"

namespace gradsync {

// A SliceLink of slice 0 of `slices`, of which the others are not there: for who measures what a
// slice computes. An exchange returns at once. Others are taken to bring zeros to sums, and what
// this slice brings to gathers, so a model trains, to no purpose, with numbers of the usual size.
// Never fails.
std::unique_ptr<SliceLink> NewLoneSliceLink(int slices);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PROFILES_LONE_SLICE_LINK_H_
