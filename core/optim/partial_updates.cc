#include "core/optim/partial_updates.h"

namespace gradsync {

OptimizerSpec PartialUpdateSpec(OptimizerSpec spec, int parts) {
  const double n = parts;
  for (OptimizerGroup& group : spec.groups) {
    // AdamW's decay is multiplied by the rate, which is divided already.
    if (spec.kind != OptimizerKind::kAdamW) group.weight_decay /= n;
    if (spec.kind == OptimizerKind::kSgd) continue;
    group.lr_scale /= n;
    group.eps /= n;
  }
  return spec;
}

}  // namespace gradsync
