// One measurement of a replay, with real processes and by the simulator.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/replay/replay_cases.h"
#include "proto/run_record.pb.h"
#include "simulator/cluster.h"

namespace gradsync {

// One measurement with real processes: a rank per worker (//benchmarks:replay_rank), and the
// servers, each on its host when there is a network. Blocks until all of them are gone; leaves no
// file behind. Errors: those of RunMeasuredJob() and SummarizeReplay().
absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const JobPrograms& programs);

// What the simulator says of a measurement on an emulated network, from the same profile, plan and
// stragglers, over as many steps where they differ; nothing without a network, which is what it
// knows. Blocks to compute; thread-safe. Errors: those of PredictRun().
absl::StatusOr<absl::optional<proto::Run>> PredictReplay(const ReplayCase& replay,
                                                         const LinkConstants& constants);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
