#include "benchmarks/exchange/rounded_input.h"

#include <algorithm>
#include <vector>

#include "benchmarks/exchange/exact_input.h"
#include "core/plan/stripes.h"

namespace gradsync {

void FillRoundedMean(int world_size, int chunk, int64_t step, int64_t first, Codec codec,
                     bool at_each_hop, absl::Span<float> out) {
  const int64_t n = static_cast<int64_t>(out.size());
  std::vector<float> contribution(out.size());
  std::fill(out.begin(), out.end(), 0.0f);
  for (int position = 0; position < world_size; ++position) {
    if (at_each_hop && position > 0) RoundMean(codec, out.data(), n);
    FillContribution(FoldRank(chunk, position, world_size), step, first,
                     absl::MakeSpan(contribution));
    for (size_t i = 0; i < out.size(); ++i) out[i] += contribution[i];
  }
  const float scale = 1.0f / static_cast<float>(world_size);
  for (float& x : out) x *= scale;
  RoundMean(codec, out.data(), n);
}

}  // namespace gradsync
