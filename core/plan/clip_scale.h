#ifndef GRADSYNC_CORE_PLAN_CLIP_SCALE_H_
#define GRADSYNC_CORE_PLAN_CLIP_SCALE_H_

#include "absl/functional/function_ref.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// What means are to be multiplied by so that their global 2-norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), as in torch's clip_grad_norm_. `squares` gives the sum of
// squares of a chunk. It is asked for each chunk that is not empty, in order of bucket and slot,
// and what it gives is added in that order, so that everybody gets the same bits.
double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_CLIP_SCALE_H_
