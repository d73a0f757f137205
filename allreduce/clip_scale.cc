#include "allreduce/clip_scale.h"

#include <cmath>

namespace gradsync {

double ClipScale(const Plan& plan, double max_norm,
                 const std::vector<absl::Span<const double>>& squares) {
  std::vector<size_t> next(squares.size(), 0);
  double sum = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      if (bucket.layout.range(slot).empty()) continue;
      const int owner = bucket.layout.chunk_of(slot);
      sum += squares[owner][next[owner]++];
    }
  }
  const double scale = max_norm / (std::sqrt(sum) + 1e-6);
  return scale < 1 ? scale : 1;
}

}  // namespace gradsync
