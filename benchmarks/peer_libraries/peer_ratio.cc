#include "benchmarks/peer_libraries/peer_ratio.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "benchmarks/records/aggregate.h"

namespace gradsync {
namespace {

constexpr double kTail = 0.025;

// How many values lie outside at each end. The true median has k of n values below it with the
// probability of k heads in n throws, so it lies below the interval with that of so many or fewer.
size_t OutsideOfInterval(size_t count) {
  const double n = static_cast<double>(count);
  double tail = 0;
  size_t k = 0;
  for (; k < count; ++k) {
    const double heads = static_cast<double>(k);
    const double log_ways =
        std::lgamma(n + 1) - std::lgamma(heads + 1) - std::lgamma(n - heads + 1);
    tail += std::exp(log_ways - n * std::log(2.0));
    if (tail > kTail) break;
  }
  return k == 0 ? 0 : k - 1;
}

}  // namespace

MedianSpread SpreadOfMedian(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t outside = OutsideOfInterval(values.size());
  return {Percentile(values, 0.5), values[outside], values[values.size() - 1 - outside]};
}

std::vector<double> RatiosByRound(const std::vector<double>& ours,
                                  const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    ratios.push_back(theirs[i] / ours[i]);
  }
  return ratios;
}

std::vector<double> FastestByRound(const std::vector<std::vector<double>>& contestants) {
  if (contestants.empty()) return {};
  std::vector<double> fastest = contestants[0];
  for (const std::vector<double>& times : contestants) {
    for (size_t i = 0; i < fastest.size(); ++i) fastest[i] = std::min(fastest[i], times[i]);
  }
  return fastest;
}

}  // namespace gradsync
