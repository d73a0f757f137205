// From what the processes of a replayed job counted to a record and a line of the table.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_REPORT_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/replay/replay_cases.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// One Run: that of AggregateRun(), and
//   - scaling_efficiency: the time of the recorded computation, scaled, over the measured step
//     (under ssp and asp the group's, 1 over steps_per_s): what one worker that computes so, and
//     exchanges nothing, would get per worker.
//   - wire_*, of hosts: without what processes of one host send each other. Without a network each
//     process counts as a host. Gathers outside of steps (step_replay.h) are taken out of what
//     servers counted.
//     Of a mesh, wire_* have what passes between stages or slices too, and the rest of Run that is
//     about meshes is set; scaling_efficiency is that of stages which lose neither to the bubble nor
//     to links.
//   - invalid, when the machine could not replay: launches were later than 2 % of the step in more
//     than a tenth of the steps, or the cores were busy for more than 70 % beside an emulated
//     network.
// Errors: those of AggregateRun(), ReplayPlan() and ShardMap::Create().
absl::StatusOr<proto::Run> SummarizeReplay(const ReplayCase& replay,
                                           const std::vector<proto::WorkerMetrics>& workers,
                                           std::vector<proto::ServerMetrics> servers);

// The head of the table, two lines, and the line of one run; all end in a newline. `predicted` is
// the simulator's, or null; its error is (predicted - measured) / measured. #wrong is "-" where
// nothing was verified (step_replay.h). Stragglers, ssp and asp have a second line with the group's
// rate, beside the predicted one, and staleness; a predicted step is that of bsp only.
std::string ReplayHead();
std::string ReplayLine(const proto::Run& run, const proto::Run* predicted);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_REPORT_H_
