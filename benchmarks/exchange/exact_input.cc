#include "benchmarks/exchange/exact_input.h"

#include <cmath>
#include <cstddef>

namespace gradsync {
namespace {

// Where the sequence of a rank and step begins; odd multipliers keep them apart.
uint32_t Begin(int rank, int64_t step) {
  return static_cast<uint32_t>(rank) * 0x85ebca6bu + static_cast<uint32_t>(step) * 0xc2b2ae35u;
}

// A multiplicative hash (Knuth, The Art of Computer Programming 6.4), scrambled once more, since
// two sequences that differ in their beginning alone would differ by about a constant. The upper
// byte, because lower ones have short periods.
int32_t Value(uint32_t begin, uint32_t element) {
  uint32_t hash = begin + element * 2654435769u;
  hash = (hash ^ (hash >> 15)) * 0x2c1b3c6du;
  return static_cast<int32_t>(hash >> 24) - 128;
}

}  // namespace

void FillContribution(int rank, int64_t step, int64_t first, absl::Span<float> out) {
  const uint32_t begin = Begin(rank, step);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(Value(begin, static_cast<uint32_t>(first + i)));
  }
}

void FillMean(int world_size, int64_t step, int64_t first, absl::Span<float> out) {
  for (float& x : out) x = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const uint32_t begin = Begin(rank, step);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += static_cast<float>(Value(begin, static_cast<uint32_t>(first + i)));
    }
  }
  const float scale = 1.0f / static_cast<float>(world_size);
  for (float& x : out) x *= scale;
}

int64_t CountWrong(absl::Span<const float> found, absl::Span<const float> expected,
                   float tolerance) {
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    wrong += found[i] != expected[i] && !(std::fabs(found[i] - expected[i]) <= tolerance);
  }
  return wrong;
}

}  // namespace gradsync
