// `compare` measures in rounds: every configuration once in each, in another order each time, so
// that a machine whose speed drifts slows all of them down alike, and none is always first. What is
// compared are ratios within a round; what is printed are medians over rounds.
//
// Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// The order of round `round` of `rounds`, as indices into `configurations`. Neighbours with equal
// bandwidth and number of workers, which are compared with each other, stay together; among
// themselves they rotate, by enough that over all rounds each is early, in the middle and late.
std::vector<size_t> OrderOfRound(const std::vector<Configuration>& configurations, int round,
                                 int rounds);

// One record of a configuration from its records of all rounds, as proto/run_record.proto says; the
// staleness is that of all rounds. Errors: DATA_LOSS without any, or when they are of several
// configurations.
absl::StatusOr<proto::Run> MergeRounds(const std::vector<proto::Run>& rounds);

// Samples per second of `run` over those of `other`, round by round. All zero where they were not
// measured in equally many rounds.
MedianSpread RatioOverRounds(const proto::Run& run, const proto::Run& other);

// Whether such a ratio shows a difference: there were two rounds at least, and 1 is not within the
// interval.
bool ShowsDifference(const MedianSpread& ratio, int rounds);

// Samples per second, after several rounds with the interval of this median: "118.0 (117.0-119.0)".
std::string FormatRate(const proto::Run& run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_
