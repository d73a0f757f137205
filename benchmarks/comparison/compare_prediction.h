// What the simulator says about the jobs that `compare` measures on an emulated network, and about
// the same jobs with more workers.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/comparison/compare_options.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"
#include "simulator/cluster.h"

namespace gradsync {

// A step of one worker that exchanges nothing, recorded now, on this machine, by `train_bench`, the
// path of //benchmarks:train_bench, into the file `path`; with the batch of the first
// configuration. Blocks for about a dozen steps. Errors: those of RunProgram() and
// ReadStepProfile().
absl::StatusOr<proto::StepProfile> RecordComparedStep(
    const std::string& train_bench, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const std::string& path);

// The predicted runs: each configuration over gRPC, and with 1, 2, 4, ... 64 workers where that is
// possible. Nothing with a random straggler. Errors: those of PredictRun().
absl::StatusOr<std::vector<proto::Run>> PredictCompared(
    const proto::StepProfile& profile, const CompareOptions& options,
    const std::vector<Configuration>& configurations, const LinkConstants& constants);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_PREDICTION_H_
