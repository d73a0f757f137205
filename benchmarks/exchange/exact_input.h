// Inputs of exchanges whose right result is known to the bit, whatever the order of the additions:
// every value is a whole number from -128 to 127, so that sums over up to 65,536 ranks are exact in
// fp32 and only the multiplication by 1/n rounds, once. Neighbours, ranks and steps differ, so that
// a chunk in the wrong place, a contribution that is missing or counted twice, and a result of an
// earlier step all show.
//
// Pure functions of their arguments, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_EXACT_INPUT_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_EXACT_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace gradsync {

// No contribution's magnitude is above it.
constexpr float kLargestContribution = 128;

// What `rank` contributes in `step` for elements first, first + 1, ...
void FillContribution(int rank, int64_t step, int64_t first, absl::Span<float> out);

// The mean of all ranks' contributions: their sum times 1.0f / world_size.
void FillMean(int world_size, int64_t step, int64_t first, absl::Span<float> out);

// Elements that differ by more than `tolerance`; without one, equal means the same value (0 and -0
// are equal). A NaN equals nothing. The spans have the same size.
int64_t CountWrong(absl::Span<const float> found, absl::Span<const float> expected,
                   float tolerance = 0);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_EXACT_INPUT_H_
