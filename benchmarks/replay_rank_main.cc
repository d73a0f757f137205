// One rank of //benchmarks:train_bench --replay, which starts it; not for people.

#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/deadline.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/ranks/abort_group.h"
#include "benchmarks/ranks/meet_ranks.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/replay/replay_clock.h"
#include "benchmarks/replay/step_replay.h"
#include "links/grpc_store.h"
#include "plan/codec.h"
#include "plan/job_spec.h"
#include "worker/backend_record.h"
#include "worker/sync_factory.h"
#include "worker/sync_flags.h"

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
  GS_ASSIGN_OR_RETURN(SyncOptions sync_options, SyncFromFlags());
  GS_RETURN_IF_ERROR(ValidateSyncOptions(sync_options));
  GS_ASSIGN_OR_RETURN(const ReplayOptions options, ReplayFromFlags(sync_options.job));
  GS_ASSIGN_OR_RETURN(const proto::StepProfile profile,
                      ReadStepProfile(absl::GetFlag(FLAGS_profile)));
  const bool local = sync_options.job.topology == Topology::kLocal;
  const int ranks = absl::GetFlag(FLAGS_world_size);
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      PlanFromFlags(profile, sync_options.job.codec, local ? 1 : ranks));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), ranks));
  std::unique_ptr<GrpcStoreServer> store_server;
  GS_ASSIGN_OR_RETURN(const WorkerGroup group,
                      MeetRanks(MeetFromFlags("train_bench"), &store_server));
  GS_RETURN_IF_ERROR(ResolveByHosts(group, &sync_options));
  GS_ASSIGN_OR_RETURN(std::unique_ptr<GradientSync> sync, CreateGradientSync(sync_options, group));
  const auto start = [&] { return line->Wait(Deadline::In(options.timeout)); };
  MonotonicReplayClock clock;
  absl::StatusOr<proto::WorkerMetrics> metrics =
      ReplaySteps(profile, plan, options, start, &clock, sync.get());
  if (!metrics.ok()) return AbortGroup(*sync, metrics.status());
  RecordBackend(*sync, &*metrics);
  sync.reset();
  metrics->set_world_size(ranks);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_bucket_bytes(static_cast<double>(absl::GetFlag(FLAGS_bucket_bytes)));
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  return start();  // the store goes with rank 0
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"replay_rank: started by train_bench."});
  return gradsync::RankExitCode("train_bench", gradsync::RunRank());
}
