// The arithmetic of comparing contestants that ran in turns: round by round, so that what slows the
// machine down in one round slows all of them. Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RATIO_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RATIO_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// A median and its distribution-free interval: the narrowest pair of order statistics, as many from
// the smallest as from the largest value, that covers the true median with at least 95 % by the
// binomial distribution. With five values or fewer no pair does; it is the smallest and the largest
// value then. All zero for no values.
struct MedianSpread {
  double p50 = 0;
  double low = 0;
  double high = 0;
};

MedianSpread SpreadOfMedian(std::vector<double> values);

// What that interval is after so many rounds: "smallest to largest of 3 rounds, which hold the true
// median 75 times in 100", "95 % interval over 9 rounds", or "one round".
std::string DescribeInterval(int rounds);

// Values near each other, far from the others.
struct TimeCluster {
  double p50 = 0;
  int count = 0;
};

// Two clusters when `values` fall apart into two, as the times of a library do that decides anew in
// each job how it runs: the widest gap between neighbours is wider than either side of it, each
// side has two values or more, and their medians differ by half or more. A median of all says
// nothing then. Otherwise none. In rising order.
std::vector<TimeCluster> FindTwoClusters(std::vector<double> values);

// theirs[i] / ours[i]: how many times as fast we were in round i. Both have one positive time per
// round.
std::vector<double> RatiosByRound(const std::vector<double>& ours,
                                  const std::vector<double>& theirs);

// How records name the one to beat.
constexpr char kBestPeer[] = "best peer";

// The same as records have it: the median of RatiosByRound() and its interval.
proto::PeerRatio RatioTo(absl::string_view peer, const std::vector<double>& ours,
                         const std::vector<double>& theirs);

// In each round the shortest of all contestants' times, whoever's it is: no single library does
// better. All have as many rounds; empty for no contestants.
std::vector<double> FastestByRound(const std::vector<std::vector<double>>& contestants);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RATIO_H_
