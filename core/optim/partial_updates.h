// The optimizer of one of several updates that together make a step.

#ifndef GRADSYNC_CORE_OPTIM_PARTIAL_UPDATES_H_
#define GRADSYNC_CORE_OPTIM_PARTIAL_UPDATES_H_

#include "core/plan/optimizer_spec.h"

namespace gradsync {

// For `parts` updates with a gradient times 1/parts each, in place of one with the mean of those
// gradients: `spec` with everything that does not scale with the gradient divided by `parts`. That
// is the weight decay that is added to the gradient (SGD, Adam), and the rate of Adam and AdamW,
// whose steps do not depend on the gradient's scale, together with eps, which does. The decay of
// momentum and of Adam's averages stays as it is, per update.
//
// With SGD without momentum and decay, `parts` such updates with gradients taken at the same
// parameters are one step of `spec` up to rounding; with momentum they move a parameter as far in
// the long run.
OptimizerSpec PartialUpdateSpec(OptimizerSpec spec, int parts);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_OPTIM_PARTIAL_UPDATES_H_
