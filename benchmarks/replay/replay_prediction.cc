#include "benchmarks/replay/replay_prediction.h"

#include "base/status_macros.h"
#include "benchmarks/prediction/prediction.h"

namespace gradsync {

absl::StatusOr<absl::optional<proto::Run>> PredictReplay(const ReplayCase& replay,
                                                         const LinkConstants& constants) {
  if (replay.job.bandwidth.empty()) return absl::optional<proto::Run>();
  PredictedJob job;
  job.placed = replay.job;
  job.bucket_bytes = replay.plan.bucket_bytes;
  job.first_bucket_bytes = replay.plan.first_bucket_bytes;
  job.chunk_bytes = replay.plan.chunk_bytes;
  job.compute_scale = replay.compute_scale;
  job.steps = static_cast<int>(replay.steps - replay.warmup_steps);
  if (replay.straggler.random()) {
    job.slowness_of_step = [&replay](int rank, int step) {
      return replay.straggler.Factor(rank, replay.warmup_steps + 1 + step);
    };
  } else if (!replay.straggler.nobody()) {
    for (int rank = 0; rank < replay.job.workers; ++rank) {
      job.slowness.push_back(replay.straggler.Factor(rank, 1));
    }
  }
  job.constants = constants;
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(replay.profile, job));
  run.set_profile(replay.profile_name);
  run.set_compute_scale(replay.compute_scale);
  run.set_straggler(replay.straggler.text());
  return absl::optional<proto::Run>(run);
}

}  // namespace gradsync
