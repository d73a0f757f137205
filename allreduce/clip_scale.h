#ifndef GRADSYNC_ALLREDUCE_CLIP_SCALE_H_
#define GRADSYNC_ALLREDUCE_CLIP_SCALE_H_

#include <vector>

#include "absl/types/span.h"
#include "plan/plan.h"

namespace gradsync {

// What means are to be multiplied by so that their global 2-norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), as in torch's clip_grad_norm_. `squares` has by rank the sums
// of squares of the chunks that it owns, empty ones left out, in order of bucket and slot. They are
// added in that order over all ranks, so that everybody gets the same bits.
double ClipScale(const Plan& plan, double max_norm,
                 const std::vector<absl::Span<const double>>& squares);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_CLIP_SCALE_H_
