// How fast training is at each bandwidth, measured beside predicted.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_BANDWIDTH_REPORT_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_BANDWIDTH_REPORT_H_

#include <string>
#include <vector>

#include "proto/run_record.pb.h"

namespace gradsync {

// The prediction of `run`'s configuration among records.predictions; null without one.
const proto::Run* PredictionOf(const proto::RunRecords& records, const proto::Run& run);

// A table with a row for each bandwidth, and for each topology and placement what was measured and
// what is predicted, in samples per second: of runs over gRPC that update at the worker without
// codec under bsp, with the number of workers for which most bandwidths are known. Has the measured
// bandwidths, and of those that are predicted `asked_for` and three that show how it goes on; empty
// with fewer than two.
std::string FormatBandwidths(const proto::RunRecords& records,
                             const std::vector<std::string>& asked_for);

// One line for each of `bandwidths`, those that were asked for, at which no valid run was measured:
// which topology is predicted to be faster.
std::string JudgePredictions(const proto::RunRecords& records,
                             const std::vector<std::string>& bandwidths);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_BANDWIDTH_REPORT_H_
