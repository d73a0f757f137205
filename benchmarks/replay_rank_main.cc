// One rank of //benchmarks:train_bench --replay, which starts it; not for people.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_join.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/replay/mesh_cases.h"
#include "benchmarks/replay/replay_cases.h"
#include "benchmarks/replay/replay_clock.h"
#include "benchmarks/replay/stage_replay.h"
#include "benchmarks/replay/step_replay.h"
#include "core/base/deadline.h"
#include "core/base/process_resources.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/codec.h"
#include "core/plan/pipeline_schedule.h"
#include "core/plan/plan.h"
#include "core/program/flags.h"
#include "gradsync/join/backend_record.h"
#include "gradsync/join/join.h"
#include "worker/model_places.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_link.h"

namespace gradsync {
namespace {

// Where in a mesh this rank is.
struct Place {
  Mesh mesh;
  PipelineSchedule schedule = PipelineSchedule::kNaive;
  MicroBatches batches;
  int stage = 0;
  int stages = 1;
  RecordedStage recorded;
};

absl::StatusOr<Place> PlaceOf(const proto::RankSpec::Replay& spec, int rank, int ranks) {
  Place place;
  GS_ASSIGN_OR_RETURN(place.mesh, Mesh::Parse(spec.mesh(), ranks));
  GS_ASSIGN_OR_RETURN(place.schedule, ParsePipelineSchedule(spec.pipeline_schedule()));
  GS_ASSIGN_OR_RETURN(place.batches, BatchesOfSpec(spec));
  GS_ASSIGN_OR_RETURN(const std::vector<RecordedStage> stages, StagesOfSpec(spec, place.mesh));
  place.stage = place.mesh.Coordinate(rank, MeshDimension::kPipeline);
  place.stages = static_cast<int>(stages.size());
  place.recorded = stages[place.stage];
  return place;
}

// Of what the ranks have that replay this rank's replica of the model, by stage or slice.
absl::StatusOr<std::vector<std::string>> HashesOfReplica(const Place& place, const std::string& own,
                                                         int rank, const Member& member,
                                                         const ModelPlaces& places,
                                                         absl::Duration timeout) {
  if (places.pipeline() != nullptr) {
    return places.pipeline()->stages->AllGather(own, Deadline::In(timeout));
  }
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      member.side_channel().AllGather(own, Deadline::In(timeout)));
  const int replica = place.mesh.Coordinate(rank, place.mesh.samples());
  std::vector<std::string> hashes(place.mesh.size(MeshDimension::kTensor));
  for (int other = 0; other < static_cast<int>(all.size()); ++other) {
    if (place.mesh.Coordinate(other, place.mesh.samples()) != replica) continue;
    hashes[place.mesh.Coordinate(other, MeshDimension::kTensor)] = all[other];
  }
  return hashes;
}

// The hash is that of all stages' or slices' results, the same on all ranks.
absl::Status RecordPlace(const Place& place, const ReplayOptions& options, const Member& member,
                         const ModelPlaces& places, proto::WorkerMetrics* metrics) {
  metrics->set_mesh(place.mesh.ToString());
  metrics->set_pipeline_schedule(options.spec.pipeline_schedule());
  metrics->set_micro_batches(static_cast<int32_t>(place.batches.count));
  metrics->set_split(options.spec.split());
  metrics->set_stage(place.stage);
  metrics->set_batch_size(static_cast<int32_t>(place.batches.each));
  metrics->set_accumulate(static_cast<int32_t>(place.batches.count));
  if (places.slice() != nullptr) {
    metrics->set_slice(place.mesh.Coordinate(options.rank, MeshDimension::kTensor));
  }
  if (places.pipeline() == nullptr && places.slice() == nullptr) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> hashes,
                      HashesOfReplica(place, metrics->params_sha256(), options.rank, member, places,
                                      options.timeout));
  metrics->set_params_sha256(Sha256Hex(absl::StrJoin(hashes, "")));
  return absl::OkStatus();
}

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kReplay));
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("train_bench", spec));
  ReplayOptions options;
  options.rank = join.meet.rank;
  options.spec = spec.replay();
  options.consistency = join.sync.job.consistency;
  options.timeout = join.meet.timeout;
  const int ranks = join.meet.world_size;
  Plan plan;
  Place place;
  const bool staged = !options.spec.mesh().empty();
  if (staged) {
    GS_ASSIGN_OR_RETURN(place, PlaceOf(options.spec, options.rank, ranks));
    plan = place.recorded.plan;
    join.mesh = place.mesh;
    options.replica = place.mesh.Coordinate(options.rank, place.mesh.samples());
  } else {
    GS_ASSIGN_OR_RETURN(plan, ReplayPlan(options.spec, join.sync.job, ranks));
  }
  GS_ASSIGN_OR_RETURN(const std::function<absl::Status()> start, OpenStartLine(spec));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Join(std::move(join)));
  absl::StatusOr<std::unique_ptr<ModelPlaces>> places = ModelPlaces::Open(*member, ModelLinks());
  if (!places.ok()) return member->Fail(places.status());
  MonotonicReplayClock clock;
  std::unique_ptr<StageReplay> stage;
  if (staged) {
    ReplayedStage replayed;
    replayed.recorded = place.recorded;
    replayed.schedule = place.schedule;
    replayed.micro_batches = place.batches.count;
    replayed.stage = place.stage;
    replayed.stages = place.stages;
    if ((*places)->pipeline() != nullptr) replayed.link = (*places)->pipeline()->link;
    if ((*places)->slice() != nullptr) replayed.slices = (*places)->slice()->link;
    replayed.timeout = options.timeout;
    stage = std::make_unique<StageReplay>(std::move(replayed), &clock);
    options.stage = stage.get();
  }
  absl::StatusOr<proto::WorkerMetrics> metrics =
      ReplaySteps(options, plan, start, &clock, &member->sync());
  if (!metrics.ok()) return member->Fail(metrics.status());
  RecordBackend(member->sync(), &*metrics);
  metrics->set_world_size(ranks);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_bucket_bytes(static_cast<double>(options.spec.bucket_bytes()));
  if (staged) GS_RETURN_IF_ERROR(RecordPlace(place, options, *member, **places, &*metrics));
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  return member->Leave();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"replay_rank: started by train_bench."});
  return gradsync::RankExitCode("train_bench", gradsync::RunRank());
}
