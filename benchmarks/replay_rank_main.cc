// One rank of //benchmarks:train_bench --replay, which starts it; not for people.

#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "base/deadline.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/replay/replay_clock.h"
#include "benchmarks/replay/step_replay.h"
#include "join/backend_record.h"
#include "join/join.h"
#include "plan/codec.h"
#include "plan/job_spec.h"

ABSL_FLAG(std::string, profile, "", "file of the step profile");
ABSL_FLAG(int64_t, bucket_bytes, 0, "of a bucket");
ABSL_FLAG(int64_t, first_bucket_bytes, 0, "of the first bucket");
ABSL_FLAG(int64_t, chunk_bytes, 0, "of a chunk; 0: by bucket size and world size");
ABSL_FLAG(double, compute_scale, 1, "of all times of computation");
ABSL_FLAG(std::string, straggler, "", "as //worker has it");
ABSL_FLAG(int64_t, steps, 1, "measured steps");
ABSL_FLAG(int64_t, warmup_steps, 1, "steps before them");

namespace gradsync {
namespace {

absl::StatusOr<ReplayOptions> ReplayFromFlags(const JobSpec& job) {
  ReplayOptions options;
  options.rank = absl::GetFlag(FLAGS_rank);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  options.compute_scale = absl::GetFlag(FLAGS_compute_scale);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.consistency = job.consistency;
  GS_ASSIGN_OR_RETURN(options.straggler, Straggler::Parse(absl::GetFlag(FLAGS_straggler)));
  return options;
}

absl::StatusOr<Plan> PlanFromFlags(const proto::StepProfile& profile, Codec codec, int world_size) {
  PlanOptions options;
  options.world_size = world_size;
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.codec = codec;
  return ProfilePlan(profile, options);
}

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("train_bench"));
  GS_RETURN_IF_ERROR(CheckJoin(join));
  const JobSpec& job = join.sync.job;
  GS_ASSIGN_OR_RETURN(const ReplayOptions options, ReplayFromFlags(job));
  GS_ASSIGN_OR_RETURN(const proto::StepProfile profile,
                      ReadStepProfile(absl::GetFlag(FLAGS_profile)));
  const int ranks = join.meet.world_size;
  GS_ASSIGN_OR_RETURN(const Plan plan, PlanFromFlags(profile, job.codec,
                                                     job.topology == Topology::kLocal ? 1 : ranks));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), ranks));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Join(std::move(join)));
  const auto start = [&] { return line->Wait(Deadline::In(options.timeout)); };
  MonotonicReplayClock clock;
  absl::StatusOr<proto::WorkerMetrics> metrics =
      ReplaySteps(profile, plan, options, start, &clock, &member->sync());
  if (!metrics.ok()) return member->Fail(metrics.status());
  RecordBackend(member->sync(), &*metrics);
  metrics->set_world_size(ranks);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_bucket_bytes(static_cast<double>(absl::GetFlag(FLAGS_bucket_bytes)));
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  member->Leave();
  return absl::OkStatus();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"replay_rank: started by train_bench."});
  return gradsync::RankExitCode("train_bench", gradsync::RunRank());
}
