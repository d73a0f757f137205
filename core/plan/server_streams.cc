#include "core/plan/server_streams.h"

#include <algorithm>
#include <cmath>

namespace gradsync {

std::vector<int> StreamsByServer(const std::vector<double>& weights, int connections) {
  constexpr double kMost = 4;
  if (weights.empty()) return {};
  const auto ends = std::minmax_element(weights.begin(), weights.end());
  const double lightest = *ends.first;
  if (*ends.second == lightest) return std::vector<int>(weights.size(), connections);
  std::vector<int> streams;
  for (double weight : weights) {
    streams.push_back(static_cast<int>(std::lround(std::min(kMost, weight / lightest))));
  }
  return streams;
}

}  // namespace gradsync
