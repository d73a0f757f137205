#ifndef GRADSYNC_BENCHMARKS_REPLAY_MESH_SPEC_H_
#define GRADSYNC_BENCHMARKS_REPLAY_MESH_SPEC_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "core/group/mesh.h"
#include "proto/rank_spec.pb.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// What the ranks of a replayed mesh are told, read back. Errors of all: INVALID_ARGUMENT for a spec
// that ListMeshCases() does not make.

// All profiles, the first one first.
std::vector<proto::StepProfile> ProfilesOfSpec(const proto::RankSpec::Replay& spec);

// The micro-batches of a replica's step.
absl::StatusOr<MicroBatches> BatchesOfSpec(const proto::RankSpec::Replay& spec);

// The stages that the ranks of `mesh` replay, without compute_scale.
absl::StatusOr<std::vector<RecordedStage>> StagesOfSpec(const proto::RankSpec::Replay& spec,
                                                        const Mesh& mesh);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_MESH_SPEC_H_
