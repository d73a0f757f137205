// `compare` measures in rounds: every configuration once in each, in another order each time, so
// that a machine whose speed drifts slows all of them down alike, and none is always first. What is
// compared are ratios within a round; what is printed are medians over rounds.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/records/terminal.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// Pure functions, thread-safe, but for RunParts().

// The order of round `round` of `rounds`, as indices into `configurations`. Neighbours with equal
// bandwidth and number of workers, which are compared with each other, stay together; among
// themselves they rotate, by enough that over all rounds each is early, in the middle and late.
std::vector<size_t> OrderOfRound(const std::vector<Configuration>& configurations, int round,
                                 int rounds);

// One record of a configuration from its records of all rounds, as proto/run_record.proto says; the
// staleness is that of all rounds. Errors: DATA_LOSS without any, or when they are of several
// configurations.
absl::StatusOr<proto::Run> MergeRounds(const std::vector<proto::Run>& rounds);

// Samples per second of `run` over those of `other`, round by round. Empty where they were not
// measured in equally many rounds.
std::vector<double> RatiosOverRounds(const proto::Run& run, const proto::Run& other);

// Samples per second, after several rounds with the interval of this median: "118.0 (117.0-119.0)".
std::string FormatRate(const proto::Run& run);

// Jobs that are compared, all of one CompareOptions.
struct ComparisonPart {
  CompareOptions options;
  std::vector<Configuration> configurations;

  bool on_networks() const { return !options.bandwidths.empty(); }
};

using Networks = std::map<std::string, std::unique_ptr<EmulatedNetwork>>;  // by bandwidth

// Seconds that each job is expected to take, in the order in which they run: as long as
// `predictions` say, or else by a rule of thumb on so many cores.
std::vector<double> ExpectedSeconds(
    const std::vector<ComparisonPart>& parts,
    const google::protobuf::RepeatedPtrField<proto::Run>& predictions, int cores);

// Runs all jobs, each on the network of its bandwidth if it has one, and adds a record for each
// configuration to `records`: over the rounds that all have that did not fail, one at least. A
// configuration that has failed is left out of further rounds. `progress.weights` are
// ExpectedSeconds(); `on_error` gets a line for each failure. Blocks. Returns the exit code: 0; 1
// when a job failed; 2 when one refused its flags, and 128 + signal when interrupted, after which
// nothing more is run.
int RunParts(const std::vector<ComparisonPart>& parts, const JobPrograms& programs,
             const Networks& networks, ProgressOptions progress,
             const std::function<void(absl::string_view)>& on_error, proto::RunRecords* records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_COMPARE_ROUNDS_H_
