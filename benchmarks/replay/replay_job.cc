#include "benchmarks/replay/replay_job.h"

#include <memory>
#include <utility>

#include "benchmarks/prediction/prediction.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/replay/replay_report.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"

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

absl::StatusOr<absl::optional<proto::Run>> PredictReplay(const ReplayCase& replay,
                                                         const LinkConstants& constants) {
  if (replay.job.bandwidth.empty()) return absl::optional<proto::Run>();
  const proto::RankSpec::Replay& spec = replay.spec;
  PredictedJob job;
  job.placed = replay.job;
  job.bucket_bytes = spec.bucket_bytes();
  job.first_bucket_bytes = spec.first_bucket_bytes();
  job.chunk_bytes = spec.chunk_bytes();
  job.compute_scale = spec.compute_scale();
  job.steps = static_cast<int>(spec.steps());
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(spec.straggler()));
  if (straggler.random()) {
    job.slowness_of_step = [&](int rank, int step) {
      return straggler.Factor(rank, spec.warmup_steps() + 1 + step);
    };
  } else if (!straggler.nobody()) {
    for (int rank = 0; rank < replay.job.workers; ++rank) {
      job.slowness.push_back(straggler.Factor(rank, 1));
    }
  }
  job.constants = constants;
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(spec.profile(), job));
  run.set_profile(replay.profile_name);
  run.set_global_batch_size(static_cast<double>(replay.global_batch_size));
  run.set_compute_scale(spec.compute_scale());
  run.set_straggler(spec.straggler());
  return absl::optional<proto::Run>(run);
}

}  // namespace gradsync
