#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_

#include "absl/status/statusor.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/replay/replay_cases.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// One measurement with real processes: a rank per worker (//benchmarks:replay_rank), and the
// servers, each on its host when there is a network. Blocks until all of them are gone; leaves no
// file behind. Errors: those of RunMeasuredJob() and SummarizeReplay().
absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const JobPrograms& programs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
