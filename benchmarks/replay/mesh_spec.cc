#include "benchmarks/replay/mesh_spec.h"

#include "core/base/status_macros.h"
#include "core/plan/plan.h"

namespace gradsync {

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
