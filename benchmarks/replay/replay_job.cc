#include "benchmarks/replay/replay_job.h"

#include <memory>
#include <utility>

#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/replay/replay_report.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const JobPrograms& programs) {
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(RankSpecOf(replay), replay.timeout));
  LocalJobOptions processes = ProcessesOf(replay.job, programs, replay.timeout);
  processes.worker_flags = {files->flag()};
  GS_ASSIGN_OR_RETURN(
      const MeasuredJob<proto::WorkerMetrics> measured,
      RunMeasuredJob<proto::WorkerMetrics>(replay.job, programs, std::move(processes)));
  return SummarizeReplay(replay, measured.ranks, measured.servers);
}

}  // namespace gradsync
