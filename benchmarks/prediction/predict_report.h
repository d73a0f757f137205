// What `predict` prints.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/prediction/prediction.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// A table of predicted runs, those of the same bandwidth and workers together, the fastest of each
// marked, or all within 1 % of it. Pure.
std::string PredictTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

// Where servers are looked for.
struct ServerPlaces {
  bool colocated = false;  // as many as workers, beside them
  bool dedicated = false;  // 1 to `most` on hosts of their own
  bool mixed = false;      // these, fewer than workers, and one beside each worker
  int most = 0;
};

struct Advice {
  // Which topology and how many servers, at which number of servers the answer flips, and what it
  // would gain.
  std::string sentence;
  std::vector<proto::Run> tried;  // as PredictRun() has them
};

// For `job`'s workers; `job` says everything else. What it says may leave out a way, such as rings
// under ssp. Ways within 1 % of each other count as equal, and then the one with fewer hosts wins,
// and dedicated placement. Blocks to compute a simulation for each way, fluid ones unless workers
// are not alike, do not wait for each other, or hosts share cores. Errors: those of PredictRun();
// INVALID_ARGUMENT where there is no way at all.
absl::StatusOr<Advice> Advise(const proto::StepProfile& profile, const PredictedJob& job,
                              const ServerPlaces& places);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_PREDICT_REPORT_H_
