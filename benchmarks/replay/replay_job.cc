#include "benchmarks/replay/replay_job.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/replay/replay_report.h"

namespace gradsync {

absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const JobPrograms& programs) {
  GS_ASSIGN_OR_RETURN(const std::string start_line, NewStartLineFile());
  const auto remove = absl::MakeCleanup([&start_line] { unlink(start_line.c_str()); });
  LocalJobOptions processes = ProcessesOf(replay.job, programs, replay.timeout);
  processes.worker_flags = ReplayRankFlags(replay, start_line);
  GS_ASSIGN_OR_RETURN(
      const MeasuredJob<proto::WorkerMetrics> measured,
      RunMeasuredJob<proto::WorkerMetrics>(replay.job, programs, std::move(processes)));
  return SummarizeReplay(replay, measured.ranks, measured.servers);
}

}  // namespace gradsync
