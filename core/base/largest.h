#ifndef GRADSYNC_CORE_BASE_LARGEST_H_
#define GRADSYNC_CORE_BASE_LARGEST_H_

#include <cstddef>
#include <cstdint>

namespace gradsync {

// Writes the indices of the `k` elements of largest absolute value to `out`, ascending; of equal
// ones those with the lower index. NaNs count as larger than infinities, and among themselves by
// their bits, so that the result is a function of the bits of `x` alone. k <= n <= 2^32.
//
// Three passes over `x`: a histogram of the upper bits of the absolute values finds the k-th
// largest's bin, a selection (Hoare, "Algorithm 65: FIND", 1961) within the bin finds its value,
// and a scan collects. Expected time O(n). Thread-safe, never blocks; allocates the bin.
void SelectLargest(const float* x, size_t n, size_t k, uint32_t* out);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_LARGEST_H_
