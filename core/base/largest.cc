#include "core/base/largest.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

namespace gradsync {
namespace {

constexpr int kShift = 20;  // leaves the exponent and three bits of the fraction
constexpr size_t kBins = size_t{1} << (31 - kShift);

// Orders as the absolute value does.
uint32_t Magnitude(const float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return bits & 0x7fffffffu;
}

}  // namespace

void SelectLargest(const float* x, size_t n, size_t k, uint32_t* out) {
  if (k == 0) return;
  uint32_t histogram[kBins] = {};
  for (size_t i = 0; i < n; ++i) ++histogram[Magnitude(x + i) >> kShift];
  size_t above = 0;  // elements of higher bins
  size_t bin = kBins - 1;
  while (above + histogram[bin] < k) above += histogram[bin--];

  std::vector<uint32_t> members;
  members.reserve(histogram[bin]);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = Magnitude(x + i);
    if (magnitude >> kShift == bin) members.push_back(magnitude);
  }
  const auto kth = members.begin() + (k - above - 1);
  std::nth_element(members.begin(), kth, members.end(), std::greater<uint32_t>());
  const uint32_t threshold = *kth;
  // Those before the k-th that equal it are taken too, the ones with the lowest index.
  size_t equal = k - above - std::count_if(members.begin(), kth, [threshold](uint32_t member) {
                   return member > threshold;
                 });
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = Magnitude(x + i);
    if (magnitude < threshold) continue;
    if (magnitude == threshold) {
      if (equal == 0) continue;
      --equal;
    }
    *out++ = static_cast<uint32_t>(i);
  }
}

}  // namespace gradsync
