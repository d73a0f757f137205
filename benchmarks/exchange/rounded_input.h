#ifndef GRADSYNC_BENCHMARKS_EXCHANGE_ROUNDED_INPUT_H_
#define GRADSYNC_BENCHMARKS_EXCHANGE_ROUNDED_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "core/plan/codec.h"

namespace gradsync {

// The mean of exact_input.h's contributions for elements of one chunk of a stripe
// (core/plan/stripes.h), as compression to 16 bits leaves it (core/plan/codec.h): the mean is
// rounded, and in a ring, `at_each_hop`, so is each sum on the way, in the order of the fold.
// Contributions need no rounding: they are exact in either format. Thread-safe.
void FillRoundedMean(int world_size, int chunk, int64_t step, int64_t first, Codec codec,
                     bool at_each_hop, absl::Span<float> out);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_EXCHANGE_ROUNDED_INPUT_H_
