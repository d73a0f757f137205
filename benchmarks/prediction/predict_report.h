// What `predict` prints.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/prediction/prediction.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// A table of predicted runs, those of the same bandwidth and workers together, the fastest of each
// marked, or all within 1 % of it. Pure.
std::string PredictTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

// One sentence: which topology and how many servers for `job`'s workers, at which number of servers
// the answer flips, and what it would gain. Servers are looked for on 1 to `most_servers` hosts of
// their own, and beside the workers (all of them) if `colocated`; `job` says everything else. Ways
// within 1 % of each other count as equal, and then the one with fewer hosts wins. Blocks to
// compute `most_servers` fluid simulations. Errors: those of PredictRun().
absl::StatusOr<std::string> Advise(const proto::StepProfile& profile, const PredictedJob& job,
                                   int most_servers, bool colocated);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_
