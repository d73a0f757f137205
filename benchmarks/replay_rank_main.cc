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
#include "plan/consistency.h"
#include "worker/sync_factory.h"

// Set by RunLocalJob().
ABSL_FLAG(std::vector<std::string>, servers, {}, "parameter servers, host:port,...");

ABSL_FLAG(std::string, profile, "", "file of the step profile");
ABSL_FLAG(std::string, topology, "ring", "ring, ps or local");
ABSL_FLAG(std::string, link, "auto", "as //worker has it");
ABSL_FLAG(std::string, update, "worker", "worker or owner");
ABSL_FLAG(std::string, compression, "none", "as //worker has it");
ABSL_FLAG(std::string, consistency, "bsp", "as //worker has it");
ABSL_FLAG(int, connections, 0, "per pair of peers; 0: the topology's default");
ABSL_FLAG(int64_t, bucket_bytes, 0, "of a bucket");
ABSL_FLAG(int64_t, first_bucket_bytes, 0, "of the first bucket");
ABSL_FLAG(int64_t, chunk_bytes, 0, "of a chunk; 0: by bucket size and world size");
ABSL_FLAG(double, compute_scale, 1, "of all times of computation");
ABSL_FLAG(std::string, straggler, "", "as //worker has it");
ABSL_FLAG(int64_t, steps, 1, "measured steps");
ABSL_FLAG(int64_t, warmup_steps, 1, "steps before them");

namespace gradsync {
namespace {

SyncOptions SyncFromFlags() {
  SyncOptions options;
  options.topology = absl::GetFlag(FLAGS_topology);
  options.link = absl::GetFlag(FLAGS_link);
  options.update = absl::GetFlag(FLAGS_update);
  options.compression = absl::GetFlag(FLAGS_compression);
  options.consistency = absl::GetFlag(FLAGS_consistency);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.connections = absl::GetFlag(FLAGS_connections);
  return options;
}

absl::StatusOr<ReplayOptions> ReplayFromFlags() {
  ReplayOptions options;
  options.rank = absl::GetFlag(FLAGS_rank);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  options.compute_scale = absl::GetFlag(FLAGS_compute_scale);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  GS_ASSIGN_OR_RETURN(options.consistency, ParseConsistency(absl::GetFlag(FLAGS_consistency)));
  GS_ASSIGN_OR_RETURN(options.straggler, Straggler::Parse(absl::GetFlag(FLAGS_straggler)));
  return options;
}

absl::StatusOr<Plan> PlanFromFlags(const proto::StepProfile& profile, int world_size) {
  PlanOptions options;
  options.world_size = world_size;
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  GS_ASSIGN_OR_RETURN(options.codec, ParseCodec(absl::GetFlag(FLAGS_compression)));
  return ProfilePlan(profile, options);
}

absl::Status RunRank() {
  SyncOptions sync_options = SyncFromFlags();
  GS_RETURN_IF_ERROR(ValidateSyncOptions(sync_options));
  GS_ASSIGN_OR_RETURN(const ReplayOptions options, ReplayFromFlags());
  GS_ASSIGN_OR_RETURN(const proto::StepProfile profile,
                      ReadStepProfile(absl::GetFlag(FLAGS_profile)));
  const bool local = sync_options.topology == "local";
  const int ranks = absl::GetFlag(FLAGS_world_size);
  GS_ASSIGN_OR_RETURN(const Plan plan, PlanFromFlags(profile, local ? 1 : ranks));
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
  sync.reset();
  metrics->set_world_size(ranks);
  metrics->set_topology(sync_options.topology);
  metrics->set_link(ResolvedLink(sync_options));
  metrics->set_update(sync_options.update);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_connections(ResolvedConnections(sync_options));
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
