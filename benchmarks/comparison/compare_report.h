// What `compare` says in the end: a table, its footnotes, the verdict, and how fast training is at
// each bandwidth.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_REPORT_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_REPORT_H_

#include <string>
#include <vector>

#include "proto/run_record.pb.h"

namespace gradsync {

// One line per run, and what the columns mean.
std::string FormatRuns(const proto::RunRecords& records);

struct Verdict {
  std::string text;  // lines
  // False when runs whose parameters must be equal differ.
  bool bits_agree = true;
  // For how many each decision about speed is corrected: there are no more than configurations.
  int decisions = 1;
};

// Compares the runs with equal numbers of workers: at each bandwidth which topology was faster, and
// over all whether they ended with the same parameters in every round. Each line says that one was
// faster, that both are equal within a margin, or that it is not decided (decision.h), corrected for
// as many lines as there are runs. On emulated networks servers on the workers' hosts and servers on more
// hosts than the ring has are compared with it one by one, beside what is predicted; there runs
// that are not valid do not take part. Arrangements, meshes and replicas, are compared where they
// have equally many workers, also one, samples per step and, on networks, hosts.
//
// Beyond two workers Gloo and NCCL add in an order of their own, and workers of topology local
// never meet: their bits are not compared, and they are named. On a GPU a difference is said but
// fails nothing. All runs must be of one job.
Verdict JudgeRuns(const proto::RunRecords& records);

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

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_REPORT_H_
