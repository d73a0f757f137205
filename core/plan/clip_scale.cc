#include "core/plan/clip_scale.h"

#include <cmath>

namespace gradsync {

double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares) {
  double sum = 0;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    const StripeLayout& layout = plan.buckets()[bucket].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (!layout.range(slot).empty()) sum += squares({bucket, slot});
    }
  }
  const double scale = max_norm / (std::sqrt(sum) + 1e-6);
  return scale < 1 ? scale : 1;
}

}  // namespace gradsync
