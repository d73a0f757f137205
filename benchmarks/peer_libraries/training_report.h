#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_REPORT_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_REPORT_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// What one contestant of //benchmarks:peers --train did.
struct TrainingOutcome {
  proto::Run run;               // who it is; with a failure its times are not looked at
  std::vector<double> step_ms;  // mean step of each measured turn, in the order of the rounds
};

// The row of PyTorch's to beat: that with the shortest median step; null when none ran.
const TrainingOutcome* BestPeer(absl::Span<const TrainingOutcome> outcomes);

// The records: times, and for each of ours in peer_ratios the ratio to every row of PyTorch's and
// to the best one (peer_ratio.h), which is also in peer_ratio; for the others peer_ratio is that to
// the first contestant, which must be one of ours. Pure, thread-safe, as is all here.
std::vector<proto::Run> TrainingRecords(absl::Span<const TrainingOutcome> outcomes);

// A table with a line for each contestant, beside it how many times as long it took as each of ours
// that synchronises, with the interval of that ratio. Below it, in sentences: what the settings were and who
// failed; the first contestant against the best row, against the same processes that do not
// synchronise, and the others of ours against it, saying whether topologies or transports are
// compared. `records` are those of `outcomes`.
std::string TrainingTable(absl::Span<const TrainingOutcome> outcomes,
                          absl::Span<const proto::Run> records);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_TRAINING_REPORT_H_
