#ifndef GRADSYNC_BENCHMARKS_RECORDS_CURVE_REPORT_H_
#define GRADSYNC_BENCHMARKS_RECORDS_CURVE_REPORT_H_

#include <string>

#include "proto/run_record.pb.h"

namespace gradsync {

// A table of how fast runs learn, and how stale their parameters were, for runs of which some are
// not under bsp or have a straggler; otherwise empty. Runs with equally many workers are held to
// one loss: the largest that any of them ends with (by SmoothedLoss()), so that all reach it; and
// to one accuracy, the smallest of their best ones.
std::string FormatCurves(const proto::RunRecords& records);

// "71 20 9": the percentage of the group's steps that were given parameters that lacked 0, 1, 2,
// ... steps of the slowest; from the tenth on together, in brackets. "-" where none was counted.
std::string FormatStaleness(const proto::Run& run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_CURVE_REPORT_H_
