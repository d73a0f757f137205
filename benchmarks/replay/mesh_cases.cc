#include "benchmarks/replay/mesh_cases.h"

#include <algorithm>
#include <string>
#include <utility>

#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/prediction/predict_options.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/profiles/step_profile.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/pipeline_schedule.h"
#include "core/plan/plan.h"
#include "core/program/byte_sizes.h"
#include "worker/pipeline/split.h"

namespace gradsync {
namespace {

// Where there is no network the list is made as if there were this one.
constexpr char kAnyBandwidth[] = "1gbit";

PredictOptions PredictOptionsOf(const ReplaySweepOptions& options) {
  PredictOptions predict;
  static_cast<SweepFlags&>(predict) = options;
  predict.bandwidths = options.bandwidths;
  if (predict.bandwidths.empty()) predict.bandwidths = {kAnyBandwidth};
  predict.global_batch_size = options.global_batch_size;
  predict.bucket_bytes = options.bucket_bytes.empty() ? "" : options.bucket_bytes[0];
  predict.first_bucket_bytes = options.first_bucket_bytes;
  predict.chunk_bytes = options.chunk_bytes;
  predict.straggler = options.straggler;
  return predict;
}

int64_t StepSamples(const PredictedMesh& mesh, const proto::StepProfile& profile) {
  if (mesh.global_batch_size > 0) {
    return mesh.global_batch_size / mesh.mesh.replicas();
  }
  return mesh.micro_batches * std::max(1, profile.batch_size());
}

// The measurement that `mesh` predicts, with what `common` and its spec say.
absl::StatusOr<MeshCase> CaseOf(const ReplayCase& common,
                                const std::vector<proto::StepProfile>& recorded,
                                const PredictedMesh& mesh, bool on_network) {
  MeshCase made;
  made.predicted = mesh;
  made.replay = common;
  ReplayCase& replay = made.replay;
  const int connections = common.job.spec.connections;
  replay.job = mesh.job.placed;
  replay.job.workers = mesh.mesh.world_size();
  replay.job.spec.link = Link::kGrpc;
  replay.job.spec.connections = connections;
  if (!on_network) replay.job.bandwidth.clear();
  replay.global_batch_size = mesh.global_batch_size;
  proto::RankSpec::Replay& spec = replay.spec;
  const int slices = mesh.mesh.size(MeshDimension::kTensor);
  GS_ASSIGN_OR_RETURN(const std::vector<proto::StepProfile> profiles,
                      ProfilesOfSlices(recorded, slices, mesh.split_sequence));
  *spec.mutable_profile() = profiles[0];
  for (size_t i = 1; i < profiles.size(); ++i) *spec.add_other_profiles() = profiles[i];
  spec.set_mesh(mesh.mesh.ToString());
  spec.set_pipeline_schedule(std::string(PipelineScheduleName(mesh.schedule)));
  spec.set_micro_batches(mesh.micro_batches);
  spec.set_step_samples(StepSamples(mesh, spec.profile()));
  GS_ASSIGN_OR_RETURN(const MicroBatches batches, BatchesOfSpec(spec));
  GS_ASSIGN_OR_RETURN(const StageSplit split,
                      SplitOf(ProfileNear(profiles, batches.each), mesh.split,
                              mesh.mesh.size(MeshDimension::kPipeline)));
  spec.set_split(SplitToString(split));
  made.predicted.split = spec.split();
  GS_ASSIGN_OR_RETURN(const std::vector<RecordedStage> stages, StagesOfSpec(spec, mesh.mesh));
  replay.one_worker_us = 0;
  for (const RecordedStage& stage : stages) {
    const auto whole = static_cast<double>(batches.count - 1);
    replay.one_worker_us += whole * (stage.each.forward_us + stage.each.backward_us) +
                            stage.last.forward_us + stage.last.backward_us + stage.update_us;
  }
  replay.one_worker_us *= slices;  // all of which are as the one that was recorded
  return made;
}

}  // namespace

absl::StatusOr<std::vector<MeshCase>> ListMeshCases(const ReplaySweepOptions& options,
                                                    const MeshFlags& flags) {
  for (const std::string& zero : options.zeros) {
    if (zero == "2" || zero == "3")
      return FlagError("zero", "0 or 1 with --replay of a mesh", zero);
  }
  for (const std::string& compression : options.compressions) {
    if (compression != "none") {
      return FlagError("compression", "none with --replay of a mesh", compression);
    }
  }
  for (const std::string& link : options.links) {
    if (link != "auto" && link != "grpc") {
      return FlagError("link", "auto or grpc with --replay of a mesh", link);
    }
  }
  GS_ASSIGN_OR_RETURN(ReplayCase common, CommonReplayCase(options));
  std::vector<proto::StepProfile> profiles;
  for (const std::string& path : options.profiles) {
    GS_ASSIGN_OR_RETURN(profiles.emplace_back(), ReadStepProfile(path));
    GS_RETURN_IF_ERROR(CheckHasBlocks(profiles.back()));
  }
  common.profile_name = profiles[0].model();
  PredictOptions predict = PredictOptionsOf(options);
  std::vector<MeshCase> cases;
  for (const std::string& scale : options.compute_scales) {
    GS_ASSIGN_OR_RETURN(const double compute_scale, ParseComputeScale(scale));
    for (const std::string& bucket_bytes : options.bucket_bytes) {
      predict.bucket_bytes = bucket_bytes;
      GS_ASSIGN_OR_RETURN(std::vector<PredictedMesh> meshes,
                          ListMeshPredictions(predict, flags, profiles));
      for (PredictedMesh& mesh : meshes) {
        mesh.job.compute_scale = compute_scale;
        common.spec.set_compute_scale(compute_scale);
        common.spec.set_bucket_bytes(mesh.job.bucket_bytes);
        common.spec.set_chunk_bytes(mesh.job.chunk_bytes);
        common.spec.set_first_bucket_bytes(
            std::min(mesh.job.first_bucket_bytes, mesh.job.bucket_bytes));
        GS_ASSIGN_OR_RETURN(cases.emplace_back(),
                            CaseOf(common, profiles, mesh, !options.bandwidths.empty()));
      }
    }
  }
  const auto has_slices = [](const MeshCase& mesh) { return mesh.predicted.mesh.has_slices(); };
  if (flags.split_sequence && std::none_of(cases.begin(), cases.end(), has_slices)) {
    return NoSlicesToSplitFor();
  }
  std::stable_sort(cases.begin(), cases.end(), [&options](const auto& a, const auto& b) {
    const auto& all = options.bandwidths;
    const auto place = [&all](const MeshCase& mesh) {
      return std::find_if(all.begin(), all.end(), [&mesh](const std::string& bandwidth) {
        return BandwidthName(bandwidth) == mesh.replay.job.bandwidth;
      });
    };
    return place(a) < place(b);
  });
  return cases;
}

absl::StatusOr<absl::optional<proto::Run>> PredictMeshCase(const MeshCase& mesh,
                                                           const LinkConstants& constants) {
  if (mesh.replay.job.bandwidth.empty()) return absl::optional<proto::Run>();
  PredictedMesh predicted = mesh.predicted;
  predicted.job.constants = constants;
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictMesh(ProfilesOfSpec(mesh.replay.spec), predicted));
  run.set_profile(mesh.replay.profile_name);
  run.set_compute_scale(mesh.replay.spec.compute_scale());
  run.set_straggler(mesh.replay.spec.straggler());
  return absl::optional<proto::Run>(run);
}

std::vector<proto::StepProfile> ProfilesOfSpec(const proto::RankSpec::Replay& spec) {
  std::vector<proto::StepProfile> profiles = {spec.profile()};
  for (const proto::StepProfile& other : spec.other_profiles()) profiles.push_back(other);
  return profiles;
}

absl::StatusOr<MicroBatches> BatchesOfSpec(const proto::RankSpec::Replay& spec) {
  return CutBatch(spec.step_samples(), spec.micro_batches());
}

absl::StatusOr<std::vector<RecordedStage>> StagesOfSpec(const proto::RankSpec::Replay& spec,
                                                        const Mesh& mesh) {
  GS_ASSIGN_OR_RETURN(const MicroBatches batches, BatchesOfSpec(spec));
  const std::vector<proto::StepProfile> profiles = ProfilesOfSpec(spec);
  GS_ASSIGN_OR_RETURN(const StageSplit split,
                      SplitOf(profiles[0], spec.split(), mesh.size(MeshDimension::kPipeline)));
  PlanOptions options;
  options.world_size = mesh.replicas();
  options.bucket_bytes = spec.bucket_bytes();
  options.first_bucket_bytes = spec.first_bucket_bytes();
  options.chunk_bytes = spec.chunk_bytes();
  return StagesOf(profiles, split, batches, /*scale=*/1, options);
}

}  // namespace gradsync
