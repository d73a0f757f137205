// The jobs of `compare`, run in rounds (compare_rounds.h), one after the other.

#ifndef GRADSYNC_BENCHMARKS_COMPARISON_RUN_PARTS_H_
#define GRADSYNC_BENCHMARKS_COMPARISON_RUN_PARTS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/records/progress.h"
#include "proto/run_record.pb.h"

namespace gradsync {

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

#endif  // GRADSYNC_BENCHMARKS_COMPARISON_RUN_PARTS_H_
