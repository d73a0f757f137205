// What the simulator says about the jobs that `compare` measures on emulated networks, and about
// the same jobs with more workers and at other bandwidths.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/prediction/prediction.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// What predictions of `compare` follow of the flags that its workers are given.
struct FollowedFlags {
  // Sets what they say of `job`, whose place is set already.
  void ApplyTo(PredictedJob* job) const;

  int64_t bucket_bytes = PredictedJob().bucket_bytes;
  int64_t first_bucket_bytes = PredictedJob().first_bucket_bytes;
  int64_t chunk_bytes = 0;            // 0: the workers' default
  int connections = 0;                // 0: the topology's default
  std::vector<std::string> recorded;  // with which //benchmarks:train_bench records a step
};

// Of the flags behind "--", the precision and the memory format. Pure, thread-safe.
// Errors: FAILED_PRECONDITION naming a flag that may make steps of which nothing is known;
// INVALID_ARGUMENT for a value that is none.
absl::StatusOr<FollowedFlags> FollowFlags(const CompareOptions& options);

// A step of one worker that exchanges nothing, recorded now, on this machine, by `train_bench`, the
// path of //benchmarks:train_bench, into the file `path`; with the batch of the first
// configuration, in the workers' precision. Blocks for about a dozen steps. Errors: those of
// FollowFlags(), RunProgram() and ReadStepProfile().
absl::StatusOr<proto::StepProfile> RecordComparedStep(
    const std::string& train_bench, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const std::string& path);

// What is known of where the jobs run.
struct EmulatedHosts {
  // Cores that all hosts share: as many workers as are measured take turns on them, which makes
  // their computation longer by so much. 0: each host has its own. Workers that are only predicted
  // always have their own.
  int cores = 0;
  // Of networks that were made, what bare TCP carries of the bandwidth; other bandwidths are taken
  // to carry the mean of these, or LinkConstants' default.
  std::map<std::string, double> rate_factors;
};

// The predicted runs over gRPC, each once: every configuration, with its and with 1, 2, 4, ... 64
// workers where that is possible; and those with the most workers, and parameter servers with one
// dedicated server beside them, at bandwidths from 25mbit to 25gbit. Nothing with a random
// straggler. Buckets, chunks and connections are those that the workers are told to have. Errors:
// those of FollowFlags() and PredictRun().
absl::StatusOr<std::vector<proto::Run>> PredictCompared(
    const proto::StepProfile& profile, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const EmulatedHosts& hosts);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_
