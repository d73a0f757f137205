// Loss, accuracy and staleness against time, from what the workers of a job measured.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_CURVE_H_
#define GRADSYNC_BENCHMARKS_RECORDS_CURVE_H_

#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Sets run.curve. Workers may be at different steps at one time, so a point stands for n steps, by
// whichever of the n workers did them: all steps of all workers are put in the order of their ends
// and cut into groups of n. A point's time is that of the group's last end, its step the number of
// groups so far, its loss the group's mean. Where every step waits for all workers, that is the
// step's own end and mean loss. Accuracies, which are of rank 0's parameters, are set in the first
// point that is not earlier. Does nothing when workers do not say when their steps ended.
void SetCurve(const std::vector<proto::WorkerMetrics>& workers, proto::Run* run);

// Steps per second of the group, n steps of workers to one of it, until the first worker has ended
// all of its own. Parts of steps count, as in GroupRate of simulator/simulate.h. 0 when workers do
// not say when their steps ended.
double StepsPerSecond(const std::vector<proto::WorkerMetrics>& workers);

// Steps of the group between two times, counted likewise.
double StepsBetween(const std::vector<proto::WorkerMetrics>& workers, double from, double to);

// The loss at each point, as the mean of the points of a tenth of all points (at least 1)
// around it.
std::vector<double> SmoothedLoss(const proto::Run& run);

// Seconds until the smoothed loss was first at most `loss`, or the accuracy at least `accuracy`.
absl::optional<double> SecondsToLoss(const proto::Run& run, double loss);
absl::optional<double> SecondsToAccuracy(const proto::Run& run, double accuracy);

// A table of how fast runs learn, and how stale their parameters were, for runs of which some are
// not under bsp or have a straggler; otherwise empty. Runs with equally many workers are held to
// one loss: the largest that any of them ends with (by SmoothedLoss()), so that all reach it; and
// to one accuracy, the smallest of their best ones.
std::string FormatCurves(const proto::RunRecords& records);

// "71 20 9": the percentage of the group's steps that were given parameters that lacked 0, 1, 2,
// ... steps of the slowest; from the tenth on together, in brackets. "-" where none was counted.
std::string FormatStaleness(const proto::Run& run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_CURVE_H_
