#include "benchmarks/peer_libraries/peer_ratio.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "benchmarks/records/aggregate.h"

namespace gradsync {

MedianSpread SpreadOfMedian(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  const double half = 1.96 * std::sqrt(n) / 2;
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - half)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + half)));
  return {Percentile(values, 0.5), values[low], values[high]};
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
