#include "benchmarks/peer_libraries/peer_ratio.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/records/aggregate.h"

namespace gradsync {
namespace {

constexpr double kTail = 0.025;
// SpreadOfMedian() takes the smallest and the largest of so many.
constexpr int kWholeRange = 5;

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

std::string DescribeInterval(int rounds) {
  if (rounds == 1) return "one round";
  if (rounds > kWholeRange) return absl::StrCat("95 % interval over ", rounds, " rounds");
  // The median lies outside when all rounds are on one side of it.
  return absl::StrFormat(
      "smallest to largest of %d rounds, which hold the true median %.0f times in 100", rounds,
      100 * (1 - std::ldexp(1.0, 1 - rounds)));
}

std::vector<TimeCluster> FindTwoClusters(std::vector<double> values) {
  constexpr size_t kLeast = 2;
  constexpr double kApart = 1.5;
  std::sort(values.begin(), values.end());
  if (values.size() < 2 * kLeast) return {};
  size_t cut = 1;  // where the upper one begins
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] - values[i - 1] > values[cut] - values[cut - 1]) cut = i;
  }
  if (cut < kLeast || values.size() - cut < kLeast) return {};
  const double gap = values[cut] - values[cut - 1];
  if (gap <= values[cut - 1] - values.front() || gap <= values.back() - values[cut]) return {};
  const auto cluster = [&values](size_t begin, size_t end) {
    return TimeCluster{Percentile({values.begin() + begin, values.begin() + end}, 0.5),
                       static_cast<int>(end - begin)};
  };
  const TimeCluster low = cluster(0, cut);
  const TimeCluster high = cluster(cut, values.size());
  if (high.p50 < kApart * low.p50) return {};
  return {low, high};
}

std::vector<double> RatiosByRound(const std::vector<double>& ours,
                                  const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    ratios.push_back(theirs[i] / ours[i]);
  }
  return ratios;
}

proto::PeerRatio RatioTo(absl::string_view peer, const std::vector<double>& ours,
                         const std::vector<double>& theirs) {
  const MedianSpread spread = SpreadOfMedian(RatiosByRound(ours, theirs));
  proto::PeerRatio ratio;
  ratio.set_peer(std::string(peer));
  ratio.set_p50(spread.p50);
  ratio.set_low(spread.low);
  ratio.set_high(spread.high);
  return ratio;
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
